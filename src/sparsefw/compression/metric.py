"""The metric: a user's function from a model to a number, larger is better."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import nn


class Metric:
    """The user's function, checked. The dense model's value must be finite; that of a broken small model may be NaN."""

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


def as_number(value: Any) -> float | None:
    """Return a number of Python, NumPy or torch as a float; None for anything else, such as a text that looks like one.

    >>> as_number(3), as_number("3")
    (3.0, None)
    """
    if isinstance(value, (str, bytes, bool)):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return None
