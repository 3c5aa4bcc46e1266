"""Figures of more than one field, drawn by matplotlib: heat maps, charts below each other, small charts side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D

from sparsefw.plotting.axes import draw_lines
from sparsefw.plotting.canvas import (
    DPI,
    LARGE_TEXT,
    NORMAL_TEXT,
    SMALL_TEXT,
    Heading,
    label_axes,
    name_line_ends,
    plain_frame,
    text_size,
)
from sparsefw.plotting.charts import Chart, HeatMap
from sparsefw.plotting.palette import INK, MUTED

COARSE_DPI = DPI * 3 // 4  # there may be many of these figures
GAP_BELOW = 0.5  # inches, for what an axis is called
MOST_CELLS_WITH_TEXT = 10  # in a row or column: up to so many, every cell tells its value


def draw_heat_maps(maps: Sequence[HeatMap]) -> Figure:
    """Draw maps of the same settings side by side, in colours that any eyes can order, and as text where there is room."""
    first = maps[0]
    each = 2.4 + max(0.62 * len(first.x), 2.6)
    height = 1.9 + max(0.42 * len(first.y), 1.4)
    width = each * len(maps)
    figure = Figure(figsize=(width, height), dpi=COARSE_DPI)
    FigureCanvasAgg(figure)
    place: dict[str, Any] = dict(va="top", parse_math=False)
    figure.text(0.1 / width, 1 - 0.12 / height, first.subtitle, size=SMALL_TEXT, color=MUTED, **place)
    bottom = 0.75 / height
    tall = 1 - 1.6 / height
    for number, heat_map in enumerate(maps):
        left = number * each
        axes = figure.add_axes(((left + 1.0) / width, bottom, (each - 2.2) / width, tall))
        image = _draw_cells(axes, heat_map)
        axes.set_title(heat_map.title, size=NORMAL_TEXT, weight="bold", color=INK, loc="left", parse_math=False)
        scale = figure.add_axes(((left + each - 0.95) / width, bottom, 0.16 / width, tall))
        bar = figure.colorbar(image, cax=scale)
        bar.outline.set_visible(False)
        bar.ax.tick_params(labelsize=SMALL_TEXT, labelcolor=MUTED, length=0)
        bar.ax.yaxis.set_major_formatter(lambda value, _: f"{value:g} %")
    return figure


def _draw_cells(axes: Axes, heat_map: HeatMap) -> AxesImage:
    across = len(heat_map.x)
    up = len(heat_map.y)
    image = axes.imshow(heat_map.values, cmap="cividis", aspect="auto", origin="lower")
    axes.set_xticks(range(across), heat_map.x, size=SMALL_TEXT, color=MUTED, rotation=0 if across <= 8 else 45)
    axes.set_yticks(range(up), heat_map.y, size=SMALL_TEXT, color=MUTED)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(length=0)
    axes.set_xlabel(heat_map.x_label, size=NORMAL_TEXT, color=INK, parse_math=False)
    axes.set_ylabel(heat_map.y_label, size=NORMAL_TEXT, color=INK, parse_math=False)
    if max(across, up) <= MOST_CELLS_WITH_TEXT:
        _write_values(axes, heat_map)
    return image


def _write_values(axes: Axes, heat_map: HeatMap) -> None:
    known = [value for row in heat_map.values for value in row if math.isfinite(value)]
    middle = (min(known) + max(known)) / 2 if known else 0.0
    for r, row in enumerate(heat_map.values):
        for c, value in enumerate(row):
            measured = math.isfinite(value)
            text = f"{value:.1f}" if measured else "-"
            colour = MUTED if not measured else "white" if value < middle else "black"
            axes.text(c, r, text, ha="center", va="center", size=SMALL_TEXT, color=colour)


def draw_stacked_charts(charts: Sequence[Chart], width: float = 8.0) -> Figure:
    """Draw charts below each other over one axis, the first the tallest, all of their lines named at their ends."""
    heights = [2.7, *[1.35] * (len(charts) - 1)]
    heading = Heading.of_width(charts[0].title, charts[0].subtitle, width)
    height = heading.height + sum(heights) + GAP_BELOW * (len(charts) - 1) + 0.5
    figure = Figure(figsize=(width, height), dpi=DPI)
    FigureCanvasAgg(figure)
    named = [[line for line in chart.lines if line.label] for chart in charts]
    sizes = [[text_size(figure, line.label) for line in lines] for lines in named]
    right = max((size[0] for own in sizes for size in own), default=0.0) + 0.32
    bottom = height - heading.height
    limits = None
    for chart, tall, lines, own in zip(charts, heights, named, sizes, strict=True):
        bottom -= tall
        axes = figure.add_axes((0.55 / width, bottom / height, 1 - (0.55 + right) / width, tall / height))
        axis = chart.axes[0]
        last = chart is charts[-1]
        draw_lines(axes, chart, axis)
        label_axes(axes, axis.label if last else "", chart.y_label)
        axes.tick_params(axis="x", labelbottom=last)
        axes.set_xlim(limits)
        limits = axes.get_xlim()
        name_line_ends(figure, axes, axis, lines, [line.label for line in lines], own)
        bottom -= GAP_BELOW
    heading.write(figure)
    return figure


def draw_small_charts(charts: Mapping[str, Chart], title: str) -> Figure:
    """Draw small charts of the same methods side by side, each below its own name, with one legend."""
    across = min(4, len(charts))
    down = math.ceil(len(charts) / across)
    width = max(2.3 * across, 4.6)
    height = 1.9 * down + 1.0
    figure = Figure(figsize=(width, height), dpi=COARSE_DPI)
    FigureCanvasAgg(figure)
    for number, (name, chart) in enumerate(charts.items()):
        row, column = divmod(number, across)
        left = 0.5 + 2.3 * column
        bottom = height - 1.0 - 1.9 * (row + 1) + 0.55
        axes = figure.add_axes((left / width, bottom / height, 1.7 / width, 1.3 / height))
        draw_lines(axes, chart, chart.axes[0])
        plain_frame(axes)
        axes.tick_params(axis="y", labelleft=column == 0)  # equal for all
        axes.set_title(name, size=SMALL_TEXT, color=INK, loc="left", parse_math=False)
    place: dict[str, Any] = dict(va="top", parse_math=False)
    figure.text(0.1 / width, 1 - 0.12 / height, title, size=LARGE_TEXT, weight="bold", color=INK, **place)
    _draw_legend(figure, next(iter(charts.values())), 0.42 / height)
    return figure


def _draw_legend(figure: Figure, chart: Chart, down: float) -> None:
    handles = [Line2D([], [], color=line.look.colour, lw=2) for line in chart.lines]
    place: dict[str, Any] = dict(bbox_to_anchor=(0.0, 1 - down), loc="upper left", frameon=False, ncols=6)
    legend = figure.legend(handles, [" "] * len(handles), fontsize=SMALL_TEXT, labelcolor=INK, **place)
    for text, line in zip(legend.get_texts(), chart.lines, strict=True):
        text.set_parse_math(False)
        text.set_text(line.label)
