"""Figures of more than one field, drawn by matplotlib: heat maps, charts below each other, small charts of all layers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D

from sparsefw.report.axes import draw_lines
from sparsefw.report.canvas import (
    DPI,
    LARGE,
    NORMAL,
    SMALL,
    Heading,
    dress,
    name_ends,
    plain_frame,
    text_size,
)
from sparsefw.report.charts import Chart, HeatMap
from sparsefw.report.looks import INK, MUTED

SMALLER = DPI * 3 // 4  # there may be many of these figures
BETWEEN = 0.5  # inches, for what an axis below is called
TEXTS = 10  # cells in a row or column up to which every cell tells its value


def maps_figure(charts: Sequence[HeatMap]) -> Figure:
    """Side by side, over the same settings: values as colours that any eyes can order, and as text where there are few."""
    first = charts[0]
    each, height = 2.4 + max(0.62 * len(first.x), 2.6), 1.9 + max(0.42 * len(first.y), 1.4)
    width = each * len(charts)
    figure = Figure(figsize=(width, height), dpi=SMALLER)
    FigureCanvasAgg(figure)
    figure.text(0.1 / width, 1 - 0.12 / height, first.subtitle, size=SMALL, color=MUTED, va="top", parse_math=False)
    low, tall = 0.75 / height, 1 - 1.6 / height
    for place, chart in enumerate(charts):
        left = place * each
        axes = figure.add_axes(((left + 1.0) / width, low, (each - 2.2) / width, tall))
        image = _map(axes, chart)
        axes.set_title(chart.title, size=NORMAL, weight="bold", color=INK, loc="left", parse_math=False)
        bar = figure.colorbar(image, cax=figure.add_axes(((left + each - 0.95) / width, low, 0.16 / width, tall)))
        bar.outline.set_visible(False)
        bar.ax.tick_params(labelsize=SMALL, labelcolor=MUTED, length=0)
        bar.ax.yaxis.set_major_formatter(lambda value, _: f"{value:g} %")
    return figure


def _map(axes: Axes, chart: HeatMap) -> AxesImage:
    across, up = len(chart.x), len(chart.y)
    image = axes.imshow(chart.values, cmap="cividis", aspect="auto", origin="lower")
    axes.set_xticks(range(across), chart.x, size=SMALL, color=MUTED, rotation=0 if across <= 8 else 45)
    axes.set_yticks(range(up), chart.y, size=SMALL, color=MUTED)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(length=0)
    axes.set_xlabel(chart.x_label, size=NORMAL, color=INK, parse_math=False)
    axes.set_ylabel(chart.y_label, size=NORMAL, color=INK, parse_math=False)
    known = [value for row in chart.values for value in row if math.isfinite(value)]
    middle = (min(known) + max(known)) / 2 if known else 0.0
    for r, row in enumerate(chart.values if max(across, up) <= TEXTS else ()):
        for c, value in enumerate(row):
            text, colour = f"{value:.1f}", "white" if value < middle else "black"
            if not math.isfinite(value):
                text, colour = "-", MUTED
            axes.text(c, r, text, ha="center", va="center", size=SMALL, color=colour)
    return image


def stacked_figure(charts: Sequence[Chart], width: float = 8.0) -> Figure:
    """Charts below each other over one axis, the first the tallest, all of their lines named at their ends."""
    heights = [2.7, *[1.35] * (len(charts) - 1)]
    heading = Heading.of(charts[0].title, charts[0].subtitle, width)
    height = heading.height + sum(heights) + BETWEEN * (len(charts) - 1) + 0.5
    figure = Figure(figsize=(width, height), dpi=DPI)
    FigureCanvasAgg(figure)
    named = [[line for line in chart.lines if line.label] for chart in charts]
    sizes = [[text_size(figure, line.label) for line in lines] for lines in named]
    right = max((size[0] for own in sizes for size in own), default=0.0) + 0.32
    low, limits = height - heading.height, None
    for chart, tall, lines, own in zip(charts, heights, named, sizes, strict=True):
        low -= tall
        axes = figure.add_axes((0.55 / width, low / height, 1 - (0.55 + right) / width, tall / height))
        axis, last = chart.axes[0], chart is charts[-1]
        draw_lines(axes, chart, axis)
        dress(axes, axis.label if last else "", chart.y_label)
        axes.tick_params(axis="x", labelbottom=last)
        axes.set_xlim(limits)
        limits = axes.get_xlim()
        name_ends(figure, axes, axis, lines, [line.label for line in lines], own)
        low -= BETWEEN
    heading.write(figure)
    return figure


def layers_figure(charts: Mapping[str, Chart], title: str) -> Figure:
    """Small charts side by side, one per layer, with one legend."""
    across = min(4, len(charts))
    down = math.ceil(len(charts) / across)
    width, height = max(2.3 * across, 4.6), 1.9 * down + 1.0
    figure = Figure(figsize=(width, height), dpi=SMALLER)
    FigureCanvasAgg(figure)
    for place, (layer, chart) in enumerate(charts.items()):
        row, column = divmod(place, across)
        left, bottom = 0.5 + 2.3 * column, height - 1.0 - 1.9 * (row + 1) + 0.55
        axes = figure.add_axes((left / width, bottom / height, 1.7 / width, 1.3 / height))
        draw_lines(axes, chart, chart.axes[0])
        plain_frame(axes)
        axes.tick_params(axis="y", labelleft=column == 0)  # equal for all
        axes.set_title(layer, size=SMALL, color=INK, loc="left", parse_math=False)
    first = next(iter(charts.values()))
    figure.text(0.1 / width, 1 - 0.12 / height, title, size=LARGE, weight="bold", color=INK, va="top", parse_math=False)
    _legend(figure, first, 0.42 / height)
    return figure


def _legend(figure: Figure, chart: Chart, down: float) -> None:
    lines: Sequence[Line2D] = [Line2D([], [], color=line.look.colour, lw=2) for line in chart.lines]
    place: dict[str, Any] = dict(bbox_to_anchor=(0.0, 1 - down), loc="upper left", frameon=False, ncols=6)
    legend = figure.legend(lines, [" "] * len(lines), fontsize=SMALL, labelcolor=INK, **place)
    for text, line in zip(legend.get_texts(), chart.lines, strict=True):
        text.set_parse_math(False)
        text.set_text(line.label)
