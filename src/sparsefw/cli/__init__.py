"""The command line."""

from sparsefw.cli.main import app

__all__ = ["app"]
