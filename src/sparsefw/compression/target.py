"""Targets: how small the model must become, and the level of compression that gets it there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

METRICS = ("params", "macs", "bytes", "latency", "drop")


class UnreachableError(ValueError):
    """No level of compression meets the target; the message says what the best reachable value is."""


@dataclass(frozen=True)
class Target:
    """params, macs, bytes, latency: at most this fraction of the dense model's; drop: the metric falls at most this much."""

    metric: str
    value: float

    @classmethod
    def parse(cls, text: str) -> Target:
        metric, equals, value = str(text).partition("=")
        metric = metric.strip()
        if metric not in METRICS or not equals:
            raise ValueError(f"target {text!r}: write one of {', '.join(f'{m}=0.3' for m in METRICS[:4])}, drop=0.01")
        try:
            number = float(value)
        except ValueError:
            raise ValueError(f"target {text!r}: {value!r} is not a number") from None
        if metric == "drop" and not number >= 0:
            raise ValueError(f"target {text!r}: the drop must be at least 0")
        if metric != "drop" and not 0 < number <= 1:
            raise ValueError(f"target {text!r}: a fraction of the dense model's {metric} must be in (0, 1]")
        return cls(metric, number)


def least_compression(share: Callable[[float], float], target: Target, steps: int = 20) -> float:
    """The smallest level at which `share` (of the dense cost, non-increasing in the level) is at most the target's value."""
    if share(0.0) <= target.value:
        return 0.0
    best = share(MOST)
    if best > target.value:
        raise UnreachableError(
            f"target {target.metric}={target.value:g} cannot be reached: "
            f"the smallest that these settings give is {best:.4g} of dense"
        )
    low, high = 0.0, MOST
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (low, middle) if share(middle) <= target.value else (middle, high)
    return high


def most_compression(drop: Callable[[float], float], target: Target, steps: int = 7) -> float:
    """The largest level found at which the metric's drop is at most the target's value."""
    if drop(MOST) <= target.value:
        return MOST
    low, high = 0.0, MOST
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (middle, high) if drop(middle) <= target.value else (low, middle)
    return low


MOST = 1 - 2**-20  # of filters, singular values or weights removed
