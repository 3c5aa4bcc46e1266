"""Draws several line charts in one figure: one above the other, or small ones side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from sparsefw.plotting.axes import draw_lines
from sparsefw.plotting.charts import Chart
from sparsefw.plotting.figure_io import COARSE_DPI, new_figure
from sparsefw.plotting.labels import (
    LARGE_TEXT,
    SMALL_TEXT,
    Heading,
    draw_legend,
    label_axes,
    name_line_ends,
    plain_frame,
    text_size,
)
from sparsefw.plotting.palette import INK

GAP_BELOW = 0.5  # inches, for the name of the vertical axis of the next chart


def draw_stacked_charts(charts: Sequence[Chart], width: float = 8.0) -> Figure:
    """Draw charts one above the other over a common axis, the first the tallest, with the names of lines at their ends."""
    heights = [2.7, *[1.35] * (len(charts) - 1)]
    heading = Heading.of_width(charts[0].title, charts[0].subtitle, width)
    height = heading.height + sum(heights) + GAP_BELOW * (len(charts) - 1) + 0.5
    figure = new_figure(width, height)
    named = [[line for line in chart.lines if line.label] for chart in charts]
    sizes = [[text_size(figure, line.label) for line in lines] for lines in named]
    right = max((size[0] for chart_sizes in sizes for size in chart_sizes), default=0.0) + 0.32
    bottom = height - heading.height
    limits = None
    for chart, chart_height, lines, chart_sizes in zip(charts, heights, named, sizes, strict=True):
        bottom -= chart_height
        axes = figure.add_axes((0.55 / width, bottom / height, 1 - (0.55 + right) / width, chart_height / height))
        axis = chart.axes[0]
        last = chart is charts[-1]
        draw_lines(axes, chart, axis)
        label_axes(axes, axis.label if last else "", chart.y_label)
        axes.tick_params(axis="x", labelbottom=last)
        axes.set_xlim(limits)
        limits = axes.get_xlim()
        name_line_ends(figure, axes, axis, lines, [line.label for line in lines], chart_sizes)
        bottom -= GAP_BELOW
    heading.write(figure)
    return figure


def draw_small_charts(charts: Mapping[str, Chart], title: str) -> Figure:
    """Draw small charts of the same methods side by side, each below its name, with one legend."""
    across = min(4, len(charts))
    down = math.ceil(len(charts) / across)
    width = max(2.3 * across, 4.6)
    height = 1.9 * down + 1.0
    figure = new_figure(width, height, COARSE_DPI)
    for number, (name, chart) in enumerate(charts.items()):
        row, column = divmod(number, across)
        left = 0.5 + 2.3 * column
        bottom = height - 1.0 - 1.9 * (row + 1) + 0.55
        axes = figure.add_axes((left / width, bottom / height, 1.7 / width, 1.3 / height))
        draw_lines(axes, chart, chart.axes[0])
        plain_frame(axes)
        axes.tick_params(axis="y", labelleft=column == 0)  # the scale is the same in all charts
        axes.set_title(name, size=SMALL_TEXT, color=INK, loc="left", parse_math=False)
    place: dict[str, Any] = dict(va="top", parse_math=False)
    figure.text(0.1 / width, 1 - 0.12 / height, title, size=LARGE_TEXT, weight="bold", color=INK, **place)
    _draw_legend(figure, next(iter(charts.values())), 0.42 / height)
    return figure


def _draw_legend(figure: Figure, chart: Chart, down: float) -> None:
    handles = [Line2D([], [], color=line.style.colour, lw=2) for line in chart.lines]
    layout: dict[str, Any] = dict(bbox_to_anchor=(0.0, 1 - down), loc="upper left", ncols=6)
    draw_legend(figure, handles, [line.label for line in chart.lines], **layout)
