"""Charts as data: the one description from which files are drawn (line_chart.py) and pages are fed (chart_data.py)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sparsefw.plotting.palette import LineStyle

LOGARITHMIC_FLOOR = 1e-6  # the smallest value that a logarithmic vertical axis shows


@dataclass(frozen=True)
class Spread:
    """The spread of a figure over seeds; all nan if one of them is: the mean must not hide a run that collapsed."""

    mean: float
    low: float
    high: float
    deviation: float
    count: int


def spread_of(values: Sequence[float]) -> Spread:
    """Return the spread of a figure over seeds.

    >>> spread_of([90.0, 92.0]).mean
    91.0
    """
    count = len(values)
    if any(map(math.isnan, values)):
        return Spread(math.nan, math.nan, math.nan, math.nan, count)
    mean = math.fsum(values) / count
    # statistics.stdev computes with fractions: ten times slower, for a call per epoch and run.
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1)) if count > 1 else 0.0
    return Spread(mean, min(values), max(values), deviation, count)


@dataclass(frozen=True)
class Axis:
    """A horizontal axis over which a chart can be drawn.

    scale         "kept" is logarithmic in 100 - x, the percentage that is kept, which spreads ratios close to 100 % apart
    tick_values   the values to label; empty: chosen automatically
    reverse       the largest value is on the left
    """

    key: str
    label: str
    scale: Literal["linear", "log", "kept"] = "linear"
    unit: Literal["%", "count", ""] = ""
    tick_values: tuple[float, ...] = ()
    reverse: bool = False


@dataclass(frozen=True)
class Line:
    """A line of a chart, with its x values on every axis of the chart.

    label   its name in the chart; empty if another line of the same style has the name
    part    "plain", "refit", or another group of lines that a reader of the page can hide
    y       a value of nan is a gap
    level   the value of the dense network, drawn as a horizontal line
    """

    label: str
    method: str
    part: str
    style: LineStyle
    solid: bool
    x: Mapping[str, Sequence[float]]
    y: Sequence[Spread]
    level: float | None = None

    def last_point(self, axis_key: str) -> tuple[float, float] | None:
        """Return the last point that can be drawn; None if there is none."""
        pairs = zip(self.x[axis_key][::-1], self.y[::-1], strict=True)
        return next(((x, y.mean) for x, y in pairs if math.isfinite(y.mean) and math.isfinite(x)), None)


@dataclass(frozen=True)
class Chart:
    """Lines over any of several horizontal axes.

    y_scale   "%": percentages, from the smallest to the largest value; "share": from 0 to 100 %
    marked    whether every point has a marker
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
    """Values in percent for all pairs of two settings; nan for a pair that was not measured."""

    title: str
    subtitle: str
    x_label: str
    y_label: str
    x: tuple[str, ...]
    y: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]
    value_label: str
