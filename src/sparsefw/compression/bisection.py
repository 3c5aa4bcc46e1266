"""Bisection: the point at which a condition begins to hold."""

from __future__ import annotations

from collections.abc import Callable


def bisect(holds: Callable[[float], bool], low: float, high: float, steps: int) -> tuple[float, float]:
    """Halve an interval with a condition that fails at `low` and holds at `high`; return one with the same property.

    >>> bisect(lambda x: x >= 0.3, 0.0, 1.0, steps=3)
    (0.25, 0.375)
    """
    for _ in range(steps):
        middle = (low + high) / 2
        if holds(middle):
            high = middle
        else:
            low = middle
    return low, high
