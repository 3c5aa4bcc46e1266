"""Checks of the arguments that networks are built from."""

from __future__ import annotations

from typing import Any

from sparsefw.scalars import is_int


def require_int(minimum: int = 1, **arguments: Any) -> None:
    """Raise ValueError unless every argument is an integer of at least `minimum`."""
    for name, value in arguments.items():
        if not is_int(value) or value < minimum:
            raise ValueError(f"{name} must be a whole number of at least {minimum}, got {value!r}")


def require_one_of(choices: tuple[str, ...], **arguments: Any) -> None:
    """Raise ValueError unless every argument is one of the choices."""
    for name, value in arguments.items():
        if value not in choices:
            raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
