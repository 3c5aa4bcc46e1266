"""Draws a line chart, with the names of its lines at their ends or in a legend."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from sparsefw.plotting.axes import DASH_PATTERNS, MARKER_SHAPES, draw_lines
from sparsefw.plotting.charts import Chart, Line
from sparsefw.plotting.figure_io import new_figure
from sparsefw.plotting.labels import (
    SMALL_TEXT,
    Heading,
    draw_legend,
    label_axes,
    name_line_ends,
    text_size,
    wrap_evenly,
)
from sparsefw.plotting.palette import PAPER

MAX_NAMES_AT_ENDS = 16  # with more lines, the names are in a legend


def draw_chart(chart: Chart, axis_key: str | None = None, width: float = 8.0) -> Figure:
    """Draw a chart.

    Args:
        chart: what to draw
        axis_key: the horizontal axis; None: the first of the chart
        width: of the figure, in inches; texts keep their sizes
    """
    axis = next(axis for axis in chart.axes if axis_key in (None, axis.key))
    height = 2.0 + 0.3 * width
    heading = Heading.of_width(chart.title, chart.subtitle, width)
    top = heading.height
    figure = new_figure(width, height + top)
    named = [line for line in chart.lines if line.label]
    names = [wrap_evenly(line.label, SMALL_TEXT, 0.36 * width) for line in named]
    few = len(named) <= MAX_NAMES_AT_ENDS
    # The longest of many names is enough to compute how many fit into a row of the legend.
    sizes = [text_size(figure, name) for name in (names if few else [max(names, key=len)])]
    at_ends = few and sum(size[1] for size in sizes) <= height - 0.6
    right = max((size[0] for size in sizes), default=0.0) + 0.32 if at_ends and named else 0.15
    below = 0.0 if at_ends else 0.19 * math.ceil(len(named) / _names_per_row(sizes, width))
    total = height + top + below
    figure.set_figheight(total)
    box = (0.55 / width, (0.5 + below) / total, 1 - (0.55 + right) / width, 1 - (0.5 + below + top) / total)
    axes = figure.add_axes(box)
    draw_lines(axes, chart, axis)
    label_axes(axes, axis.label, chart.y_label)
    if at_ends:
        name_line_ends(figure, axes, axis, named, names, sizes)
    else:
        _draw_legend(figure, named, _names_per_row(sizes, width))
    heading.write(figure)
    return figure


def _draw_legend(figure: Figure, lines: Sequence[Line], names_per_row: int) -> None:
    handles = []
    for line in lines:
        colour = line.style.colour
        inside = colour if line.solid else PAPER
        handle = Line2D([], [], color=colour, marker=MARKER_SHAPES[line.style.marker], ms=4.5, mfc=inside)
        handle.set_linestyle("-" if line.solid else DASH_PATTERNS[line.style.dash])
        handles.append(handle)
    layout: dict[str, Any] = dict(bbox_to_anchor=(0.01, 0.0), loc="lower left", ncols=names_per_row, labelspacing=0.35)
    draw_legend(figure, handles, [line.label for line in lines], **layout)


def _names_per_row(sizes: Sequence[tuple[float, float]], width: float) -> int:
    return max(1, int(width / (max(size[0] for size in sizes) + 0.6)))
