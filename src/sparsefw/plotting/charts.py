"""What a chart is made of: the one description from which canvas.py draws files and chart_data.py feeds a page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sparsefw.plotting.palette import Look

LOGARITHMIC_FLOOR = 1e-6  # what a logarithmic vertical axis shows of zeros


@dataclass(frozen=True)
class Spread:
    """Hold a number over seeds, whose mean is nan where one of them is: a collapse is not averaged away."""

    mean: float
    low: float
    high: float
    deviation: float
    count: int


def spread_of(values: Sequence[float]) -> Spread:
    """Summarize the same number of several seeds."""
    count = len(values)
    if any(map(math.isnan, values)):
        return Spread(math.nan, math.nan, math.nan, math.nan, count)
    mean = math.fsum(values) / count
    # Not statistics.stdev, which computes with fractions: ten times slower, and there are as many as epochs times runs.
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1)) if count > 1 else 0.0
    return Spread(mean, min(values), max(values), deviation, count)


@dataclass(frozen=True)
class Axis:
    """Describe a horizontal axis that a chart can be drawn over.

    scale         "kept" is logarithmic in what is left, 100 - x, so that ratios close to 100 % are not on top of each other
    tick_values   where it is labelled, if not where labels fit
    reverse       from the largest value on the left to the smallest on the right
    """

    key: str
    label: str
    scale: Literal["linear", "log", "kept"] = "linear"
    unit: Literal["%", "count", ""] = ""
    tick_values: tuple[float, ...] = ()
    reverse: bool = False


@dataclass(frozen=True)
class Line:
    """Describe one curve over every axis of its chart.

    label   its name in the chart; empty: it shares its look with another line that has one
    part    "plain", "refit", or what else can be hidden alone
    y       nan where there is a gap
    level   where it would be if nothing were lost
    """

    label: str
    method: str
    part: str
    look: Look
    solid: bool
    x: Mapping[str, Sequence[float]]
    y: Sequence[Spread]
    level: float | None = None

    def last_point(self, axis_key: str) -> tuple[float, float] | None:
        """Find the last point that can be drawn."""
        pairs = zip(self.x[axis_key][::-1], self.y[::-1], strict=True)
        return next(((x, y.mean) for x, y in pairs if math.isfinite(y.mean) and math.isfinite(x)), None)


@dataclass(frozen=True)
class Chart:
    """Describe lines over one axis or another.

    y_scale   "%" shows what there is to see, "share" all from 0 to 100 %
    marked    every value is a point that was measured, and has a marker
    """

    lines: tuple[Line, ...]
    axes: tuple[Axis, ...]
    y_label: str
    y_scale: Literal["%", "share", "log", "count"] = "%"
    title: str = ""
    subtitle: str = ""
    marked: bool = True


@dataclass(frozen=True)
class HeatMap:
    """Describe values, in percent, at every pair of two settings, nan where a pair was not measured."""

    title: str
    subtitle: str
    x_label: str
    y_label: str
    x: tuple[str, ...]
    y: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]
    value_label: str
