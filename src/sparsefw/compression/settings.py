"""Settings: how to compress, apart from how much.

compress, curve and save_elastic take the fields of Settings as keyword arguments. Fields, defaults and checks are here, once.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypedDict, TypeVar

from sparsefw.compression.allocate import ALLOCATIONS
from sparsefw.compression.progress import Progress, check_progress
from sparsefw.compression.score import SCORES
from sparsefw.compression.structure.layers import is_chosen
from sparsefw.recovery_words import AUTO
from sparsefw.scalars import is_int
from sparsefw.text import did_you_mean

REMOVED = "removed"
MASKED = "masked"
FORMS = (REMOVED, MASKED)


@dataclass(frozen=True)
class Selection:
    """The layers to compress, by glob patterns, and the multiple to which counts are rounded."""

    include: tuple[str, ...] = ("*",)
    exclude: tuple[str, ...] = ()
    round_to: int = 1

    @property
    def chooses(self) -> bool:
        """Whether it leaves out any layer by its name."""
        return self.include != ("*",) or bool(self.exclude)

    def takes(self, name: str) -> bool:
        return is_chosen(name, self.include, self.exclude)


@dataclass(frozen=True, eq=False)
class Settings:
    """How to compress, apart from how much; the docstring of compress describes each field."""

    calibration: Iterable[Any] | None = None
    example: Any = None
    refit: bool | str = AUTO
    form: str = REMOVED
    score: str | None = None
    allocation: str | None = None
    include: str | Sequence[str] = "*"
    exclude: str | Sequence[str] = ()
    round_to: int = 1
    progress: Progress | bool | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.refit, bool) and self.refit != AUTO:
            raise ValueError(f'refit={self.refit!r}: must be True, False or "{AUTO}"')
        if not is_int(self.round_to) or self.round_to < 1:
            raise ValueError(f"round_to={self.round_to!r}: must be a whole number of at least 1")
        _check_choice("form", self.form, FORMS)
        if self.score is not None:
            _check_choice("score", self.score, SCORES)
        if self.allocation is not None:
            _check_choice("allocation", self.allocation, ALLOCATIONS)
        check_progress(self.progress)
        _ = self.selection  # checks the patterns, and reads them once: they may be an iterator

    @functools.cached_property
    def selection(self) -> Selection:
        return Selection(_patterns(self.include), _patterns(self.exclude), self.round_to)


class SettingsKeywords(TypedDict, total=False):
    """The fields of Settings as keyword arguments, for editors and type checkers. (calibration is always spelled out.)"""

    example: Any
    refit: bool | str
    form: str
    score: str | None
    allocation: str | None
    include: str | Sequence[str]
    exclude: str | Sequence[str]
    round_to: int
    progress: Progress | bool | None


F = TypeVar("F", bound=Callable[..., Any])


def takes_settings(defaults: Settings, *words: str) -> Callable[[F], F]:
    """Decorate a function that ends in **keywords: help() and signature() list every field of Settings, with its default.

    Args:
        defaults: The settings of a call without keywords.
        words: Further keywords of the function, which are None by default.
    """

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        named = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        further = [inspect.Parameter(word, inspect.Parameter.KEYWORD_ONLY, default=None) for word in words]
        settings = [
            inspect.Parameter(
                f.name, inspect.Parameter.KEYWORD_ONLY, default=getattr(defaults, f.name), annotation=f.type
            )
            for f in fields(Settings)
            if f.name not in signature.parameters
        ]
        parameters = [*named, *further, *settings]
        function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return function

    return decorate


def settings_from(
    function: Callable[..., Any], defaults: Settings, calibration: Iterable[Any] | None, keywords: Mapping[str, Any]
) -> Settings:
    """Return the settings of a call of a function that takes_settings; refuse keywords that it does not list."""
    known = inspect.signature(function).parameters
    for name in keywords:
        if name not in known:
            raise TypeError(f"unknown argument {name!r}{did_you_mean(name, known)}")
    return replace(defaults, calibration=calibration, **keywords)


def is_setting(name: str) -> bool:
    return name in SettingsKeywords.__annotations__


def _check_choice(name: str, value: str, known: Iterable[str]) -> None:
    if value not in list(known):
        raise ValueError(f"{name}={value!r}: there are {', '.join(known)}")


def _patterns(value: str | Sequence[str]) -> tuple[str, ...]:
    patterns = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Iterable) else (None,)
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise ValueError(f"include and exclude take names with * and ?, or a list of them, got {value!r}")
    return patterns
