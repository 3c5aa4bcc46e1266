"""Draws heat maps side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from sparsefw.plotting.charts import HeatMap
from sparsefw.plotting.figure_io import COARSE_DPI, new_figure
from sparsefw.plotting.labels import NORMAL_TEXT, SMALL_TEXT
from sparsefw.plotting.palette import INK, MUTED

MAX_CELLS_WITH_TEXT = 10  # in a row or column; with more, cells do not show their values


def draw_heat_maps(maps: Sequence[HeatMap]) -> Figure:
    """Draw heat maps of the same settings side by side; cells show their values as text where there is room.

    The colours differ in brightness, so that colour-blind readers can order them.
    """
    first = maps[0]
    map_width = 2.4 + max(0.62 * len(first.x), 2.6)
    height = 1.9 + max(0.42 * len(first.y), 1.4)
    width = map_width * len(maps)
    figure = new_figure(width, height, COARSE_DPI)
    place: dict[str, Any] = dict(va="top", parse_math=False)
    figure.text(0.1 / width, 1 - 0.12 / height, first.subtitle, size=SMALL_TEXT, color=MUTED, **place)
    bottom = 0.75 / height
    field_height = 1 - 1.6 / height
    for number, heat_map in enumerate(maps):
        left = number * map_width
        axes = figure.add_axes(((left + 1.0) / width, bottom, (map_width - 2.2) / width, field_height))
        image = _draw_cells(axes, heat_map)
        axes.set_title(heat_map.title, size=NORMAL_TEXT, weight="bold", color=INK, loc="left", parse_math=False)
        scale = figure.add_axes(((left + map_width - 0.95) / width, bottom, 0.16 / width, field_height))
        bar = figure.colorbar(image, cax=scale)
        bar.outline.set_visible(False)
        bar.ax.tick_params(labelsize=SMALL_TEXT, labelcolor=MUTED, length=0)
        bar.ax.yaxis.set_major_formatter(lambda value, _: f"{value:g} %")
    return figure


def _draw_cells(axes: Axes, heat_map: HeatMap) -> AxesImage:
    columns = len(heat_map.x)
    rows = len(heat_map.y)
    image = axes.imshow(heat_map.values, cmap="cividis", aspect="auto", origin="lower")
    axes.set_xticks(range(columns), heat_map.x, size=SMALL_TEXT, color=MUTED, rotation=0 if columns <= 8 else 45)
    axes.set_yticks(range(rows), heat_map.y, size=SMALL_TEXT, color=MUTED)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(length=0)
    axes.set_xlabel(heat_map.x_label, size=NORMAL_TEXT, color=INK, parse_math=False)
    axes.set_ylabel(heat_map.y_label, size=NORMAL_TEXT, color=INK, parse_math=False)
    if max(columns, rows) <= MAX_CELLS_WITH_TEXT:
        _write_values(axes, heat_map)
    return image


def _write_values(axes: Axes, heat_map: HeatMap) -> None:
    measured = [value for row in heat_map.values for value in row if math.isfinite(value)]
    middle = (min(measured) + max(measured)) / 2 if measured else 0.0
    for row, values in enumerate(heat_map.values):
        for column, value in enumerate(values):
            if math.isfinite(value):
                text = f"{value:.1f}"
                colour = "white" if value < middle else "black"
            else:
                text = "-"
                colour = MUTED
            axes.text(column, row, text, ha="center", va="center", size=SMALL_TEXT, color=colour)
