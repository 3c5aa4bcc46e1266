"""What can be wrong with data."""

from __future__ import annotations


class DataError(ValueError):
    """What is wrong with data, in which file, and what would be right: one line."""
