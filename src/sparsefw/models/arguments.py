"""Checks of the arguments that networks are built from."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from sparsefw.limits import NETWORK_BLOCKS
from sparsefw.scalars import is_int


def require_int(minimum: int = 1, **arguments: Any) -> None:
    """Raise ValueError unless every argument is an integer of at least `minimum`."""
    for name, value in arguments.items():
        if not is_int(value) or value < minimum:
            raise ValueError(f"{name} must be a whole number of at least {minimum}, got {value!r}")


def require_blocks(**arguments: Any) -> None:
    """Raise ValueError unless every argument is a number of blocks that a network may have: a file can ask for millions."""
    for name, value in arguments.items():
        if not is_int(value) or not 1 <= value <= NETWORK_BLOCKS:
            raise ValueError(f"{name} must be a whole number from 1 to {NETWORK_BLOCKS:,}, got {value!r}")


def require_one_of(choices: tuple[str, ...], **arguments: Any) -> None:
    """Raise ValueError unless every argument is one of the choices."""
    for name, value in arguments.items():
        if value not in choices:
            raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def check_argument_names(name: str, builder: Callable[..., Any], arguments: Iterable[str]) -> None:
    """Raise ValueError unless `builder` accepts every argument by name and gets all that it requires."""
    parameters = inspect.signature(builder).parameters.values()
    by_name = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    accepted = ", ".join(by_name) or "none"
    accepts_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    for argument in arguments:
        if argument not in by_name and not accepts_any:
            raise ValueError(f"model {name!r} has no argument {argument!r}; accepted: {accepted}")
    for p in by_name.values():
        if p.default is p.empty and p.name not in arguments:
            raise ValueError(f"model {name!r} needs the argument {p.name!r}; accepted: {accepted}")
