"""Data sets."""

from sparsefw.data.digits import Digits, load_digits

__all__ = ["Digits", "load_digits"]
