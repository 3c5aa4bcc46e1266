"""Settings: how to compress, apart from how much. What a user gives is checked here, before any work is done."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from sparsefw.compression.allocate import ALLOCATIONS, SENSITIVITY
from sparsefw.compression.score import SCORES
from sparsefw.compression.stages import Selection

KINDS = ("filters", "rank", "weights")  # and the order in which they are applied
FORMS = ("removed", "masked")


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


def ratios_of(at: Any) -> list[float]:
    ratios = [as_number(ratio) for ratio in at] if isinstance(at, Iterable) else []
    found = [ratio for ratio in ratios if ratio is not None and 0 <= ratio < 1]
    if not found or len(found) < len(ratios):
        raise ValueError(f"at={at!r}: ratios to remove must be in [0, 1), at least one")
    return found
