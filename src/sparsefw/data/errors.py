"""The exception for faulty data."""

from __future__ import annotations


class DataError(ValueError):
    """A fault in data, in one line: the file, the fault, and the expected content."""
