"""The command line."""

from sparsefw.cli.main import app, run

__all__ = ["app", "run"]
