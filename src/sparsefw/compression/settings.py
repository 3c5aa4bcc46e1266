"""Settings: how to compress, apart from how much. What a user gives is checked here, before any work is done."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from sparsefw.compression.allocate import ALLOCATIONS, SENSITIVITY
from sparsefw.compression.score import SCORES
from sparsefw.compression.structure.layers import chosen
from sparsefw.kinds import KINDS, WEIGHTS, Kind, kind_of
from sparsefw.text import did_you_mean

FORMS = ("removed", "masked")


@dataclass(frozen=True)
class Selection:
    """Which layers, by glob; and how counts are rounded."""

    include: tuple[str, ...] = ("*",)
    exclude: tuple[str, ...] = ()
    round_to: int = 1

    def takes(self, name: str) -> bool:
        return chosen(name, self.include, self.exclude)


@dataclass(frozen=True)
class Settings:
    """How to compress, apart from how much."""

    form: str = "removed"
    score: str = "l1"
    allocation: str | None = None
    selection: Selection = field(default_factory=Selection)
    refit: bool = True

    def __post_init__(self) -> None:
        one_of("form", self.form, FORMS)
        one_of("score", self.score, SCORES)
        if self.allocation is not None:
            one_of("allocation", self.allocation, (*ALLOCATIONS, SENSITIVITY))


def settings_of(
    form: str,
    score: str,
    allocation: str | None,
    include: str | Sequence[str],
    exclude: str | Sequence[str],
    round_to: int,
    refit: bool,
) -> Settings:
    """The arguments that compress, curve and save_elastic have in common."""
    if not isinstance(refit, bool):
        raise ValueError(f"refit={refit!r}: must be True or False")
    return Settings(form, score, allocation, Selection(globs(include), globs(exclude), positive(round_to)), refit)


def amounts_of(removed: Mapping[str, Any], options: Sequence[str]) -> dict[Kind, float]:
    """Keyword arguments such as filters=0.5 and weights="2:4" as kinds and the fractions to remove.

    options: the other arguments, one of which may have been meant.
    """
    amounts: dict[Kind, float] = {}
    for name, value in removed.items():
        if difflib.get_close_matches(name, options) and not difflib.get_close_matches(name, KINDS):
            raise TypeError(f"unknown argument {name!r}{did_you_mean(name, options)}")
        kind = kind_of(name)
        if isinstance(value, str) and kind is WEIGHTS and ":" in value:
            kind = kind_of(value)
            value = kind.only_ratio
        if value is not None:
            amounts[kind] = ratio_of(kind.name, value)
    return amounts


def ratio_of(what: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise ValueError(f"{what}={value!r}: the fraction to remove must be in [0, 1)")
    return float(value)


def one_of(what: str, value: str, known: Iterable[str]) -> None:
    if value not in list(known):
        raise ValueError(f"{what}={value!r}: there are {', '.join(known)}")


def globs(value: str | Sequence[str]) -> tuple[str, ...]:
    patterns = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Iterable) else (None,)
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise ValueError(f"include and exclude take names with * and ?, or a list of them, got {value!r}")
    return patterns


def as_number(value: Any) -> float | None:
    """A number of Python, NumPy or torch as a float; None for anything else, such as a text that looks like one."""
    if isinstance(value, (str, bytes, bool)):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return None


class Metric:
    """The user's function from a model to a number. The dense model's must be finite; a broken small one may give NaN."""

    def __init__(self, evaluate: Callable[[nn.Module], float]) -> None:
        if not callable(evaluate):
            raise ValueError(
                f"evaluate must be a function from a model to a number, larger is better, got {evaluate!r}"
            )
        self.evaluate = evaluate

    def of_dense(self, model: nn.Module) -> float:
        value = self(model)
        if not math.isfinite(value):
            raise ValueError(
                f"evaluate gives {value} for the dense model: it must be a finite number, larger is better"
            )
        return value

    def __call__(self, model: nn.Module) -> float:
        value = self.evaluate(model)
        number = as_number(value)
        if number is None:
            raise ValueError(f"evaluate returned {value!r}: it must return a number, larger is better")
        return number


def positive(value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"round_to={value!r}: must be a whole number of at least 1")
    return value


def ratios_of(at: Any, kind: Kind) -> list[float]:
    ratios = [as_number(ratio) for ratio in at] if isinstance(at, Iterable) else []
    found = [ratio for ratio in ratios if ratio is not None and 0 <= ratio < 1]
    if not found or len(found) < len(ratios):
        raise ValueError(f"at={at!r}: ratios to remove must be in [0, 1), at least one")
    if kind.only_ratio is not None and found != [kind.only_ratio]:
        raise ValueError(f"at={at!r}: {kind.name} removes {kind.only_ratio:g} of the weights, no other share")
    return found
