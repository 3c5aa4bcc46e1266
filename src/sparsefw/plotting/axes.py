"""Draws the inside of a chart: lines, bands and levels, and both axes with their ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from sparsefw.plotting.charts import LOGARITHMIC_FLOOR, Axis, Chart, Line
from sparsefw.plotting.palette import MARKERS, PAPER

MARKER_SHAPES = {"circle": "o", "square": "s", "diamond": "D", "triangle-up": "^", "triangle-down": "v"}
DASH_PATTERNS: dict[str, Any] = {
    "dash": (0, (4, 2.2)),
    "dot": (0, (1, 1.6)),
    "dashdot": (0, (4, 1.6, 1, 1.6)),
    "longdash": (0, (7, 2.2)),
    "longdashdot": (0, (7, 1.6, 1, 1.6)),
}
ROUND_STEPS = [1, 2, 5, 10]  # between ticks, times a power of ten
LABEL_WIDTH = 0.5  # inches that a label of the horizontal axis needs


def draw_lines(axes: Axes, chart: Chart, axis: Axis) -> None:
    """Draw lines, bands and levels, and both axes with their ticks."""
    _arrange_horizontal_axis(axes, chart, axis)
    levels = dict.fromkeys((line.style.colour, line.level) for line in chart.lines if line.level is not None)
    for colour, level in levels:
        axes.axhline(level, color=colour, lw=0.7, alpha=0.7, zorder=1.5)
    for line in chart.lines:
        _draw_line(axes, chart, line, line.x[axis.key])
    if chart.y_scale == "log":
        _arrange_logarithmic_axis(axes, chart.lines)
    elif chart.y_scale == "count":
        _arrange_count_axis(axes, chart.lines)
    elif chart.y_scale == "share":
        _set_percent_ticks(axes, 0, 100, 50)
    else:
        _arrange_percent_axis(axes, chart.lines)


def _draw_line(axes: Axes, chart: Chart, line: Line, x: Sequence[float]) -> None:
    colour = line.style.colour
    style: dict[str, Any] = (
        dict(lw=2.2, mfc=colour) if line.solid else dict(lw=1.6, ls=DASH_PATTERNS[line.style.dash], mfc=PAPER)
    )
    # In a chart without markers, lines that share a colour still get a few, which tell them apart.
    marker = MARKER_SHAPES[line.style.marker] if chart.marked or line.style.marker != MARKERS[0] else ""
    style["markevery"] = 1 if chart.marked else max(1, len(x) // 6)
    means = [y.mean for y in line.y]
    axes.plot(x, means, color=colour, marker=marker, ms=5, mew=1.4, zorder=3, clip_on=False, **style)
    if any(y.count > 1 for y in line.y):
        low = [y.low for y in line.y]
        high = [y.high for y in line.y]
        axes.fill_between(x, low, high, color=colour, alpha=0.16, lw=0, zorder=1)


def _arrange_logarithmic_axis(axes: Axes, lines: Sequence[Line]) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_minor_formatter(NullFormatter())
    values = [y.mean for line in lines for y in line.y if math.isfinite(y.mean)]
    lowest = max(LOGARITHMIC_FLOOR, min(values, default=LOGARITHMIC_FLOOR))
    axes.set_ylim(0.8 * lowest, 1.3 * max(values, default=1.0))


def _arrange_percent_axis(axes: Axes, lines: Sequence[Line]) -> None:
    values = [
        v for line in lines for y in line.y for v in (y.low, y.high, line.level) if v is not None and math.isfinite(v)
    ]
    low = min(values, default=0.0)
    high = max(values, default=100.0)
    step = 20 if high - low > 40 else 10 if high - low > 15 else 5 if high - low > 5 else 1
    half = max(step // 2, 1)
    bottom = 0 if low < 25 else half * math.floor(low / half)
    top = max(min(step * math.ceil(high / step), 100), bottom + step)
    _set_percent_ticks(axes, bottom, top, step)


def _set_percent_ticks(axes: Axes, bottom: int, top: int, step: int) -> None:
    axes.set_ylim(bottom, top + 0.03 * step)
    axes.set_yticks(range(step * math.ceil(bottom / step), top + 1, step))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} %")


def _arrange_count_axis(axes: Axes, lines: Sequence[Line]) -> None:
    """Start the vertical axis at zero."""
    values = [y.high for line in lines for y in line.y if math.isfinite(y.high)]
    axes.set_ylim(0, 1.05 * max(values, default=0.0) or 1.0)
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=ROUND_STEPS))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")


def _arrange_horizontal_axis(axes: Axes, chart: Chart, axis: Axis) -> None:
    values = [x for line in chart.lines for x in line.x[axis.key] if math.isfinite(x)]
    low = min(values, default=0.0)
    high = max(values, default=1.0)
    if axis.scale == "log":
        axes.set_xscale("log")
        axes.set_xlim(high * 1.12, low / 1.12) if axis.reverse else axes.set_xlim(low / 1.12, high * 1.12)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 3) if high / low < 1000 else (1,)))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.xaxis.set_major_formatter(lambda value, _: short_count(value) if axis.unit == "count" else f"{value:g}")
        return
    if axis.scale == "kept":
        axes.set_xscale("function", functions=(kept_coordinate, _removed_percentage))
        first = kept_coordinate(low)
        last = kept_coordinate(high)
        span = last - first
        axes.set_xlim(100 - 100 * 10 ** -(first - 0.04 * span), 100 - 100 * 10 ** -(last + 0.01 * span))
    elif axis.tick_values:
        room = 0.04 * (high - low) or 5.0
        axes.set_xlim(low - room, high + room / 4)
    inches = axes.get_position().width * axes.figure.get_figwidth()  # type: ignore[union-attr]
    if axis.tick_values:
        pixels = axes.transData.transform([(x, 0) for x in axis.tick_values])[:, 0] - axes.bbox.x0
        positions = [inches * float(pixel) / axes.bbox.width for pixel in pixels]
        axes.set_xticks(values_with_room(axis.tick_values, positions, LABEL_WIDTH))
    else:
        ticks = max(2, min(8, int(inches / 0.6)))
        axes.xaxis.set_major_locator(MaxNLocator(ticks, steps=ROUND_STEPS, integer=True))
    if axis.unit == "%":
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.3g} %")


def kept_coordinate(removed: Any) -> Any:
    """Return the coordinate of removed percentages on an axis of scale "kept", on which 100 % is where 99.99 % is.

    >>> [round(float(kept_coordinate(removed)), 6) for removed in (90.0, 99.0, 100.0)]
    [1.0, 2.0, 4.0]
    """
    return -np.log10(np.maximum(1 - np.asarray(removed, float) / 100, 1e-4))


def _removed_percentage(coordinate: Any) -> Any:
    return 100 - 100 * 10 ** (-np.asarray(coordinate, float))


def values_with_room(values: Sequence[float], positions: Sequence[float], room: float) -> list[float]:
    """Return the values whose labels fit: the last, the first, then the others from the last to the first.

    Args:
        values: in the order of their positions
        positions: of the labels, in the unit of `room`
        room: the smallest distance between two labels
    """
    labelled = [0] if len(values) > 1 and abs(positions[-1] - positions[0]) >= room else []
    labelled.append(len(values) - 1)
    for i in range(len(values) - 2, 0, -1):
        if all(abs(positions[i] - positions[j]) >= room for j in labelled):
            labelled.append(i)
    return [values[i] for i in sorted(labelled)]


def short_count(value: float) -> str:
    """Return a count in three digits.

    >>> short_count(28_047), short_count(1_237_744)
    ('28 k', '1.24 M')
    """
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {letter}"
    return f"{value:.3g}"
