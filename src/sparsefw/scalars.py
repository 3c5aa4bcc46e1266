"""Checks of scalar arguments: a bool is an int for Python, but never a number that a user means."""

from __future__ import annotations

import numbers
from typing import Any, TypeGuard


def is_int(value: Any) -> TypeGuard[int]:
    """Whether the value is a Python int, which JSON can hold, and not a bool.

    >>> is_int(3), is_int(True), is_int(3.0)
    (True, False, False)
    """
    return isinstance(value, int) and not isinstance(value, bool)


def is_whole(value: Any) -> TypeGuard[int]:
    """Whether the value is an integer of Python or NumPy, and not a bool."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_number(value: Any) -> TypeGuard[float]:
    """Whether the value is a real number of Python or NumPy, and not a bool.

    >>> is_number(3), is_number(0.5), is_number(True), is_number("3")
    (True, True, False, False)
    """
    return isinstance(value, numbers.Real) and not isinstance(value, bool)
