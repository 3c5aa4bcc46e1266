"""Charts as JSON, from which the script of a page draws them with Plotly."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from sparsefw.plotting.charts import Axis, Chart, HeatMap, Line
from sparsefw.plotting.palette import LINE_COLOURS


def chart_data(chart: Chart | HeatMap) -> dict[str, Any]:
    """Return everything that the page's script needs to draw a chart."""
    return _heat_map_data(chart) if isinstance(chart, HeatMap) else _lines_data(chart)


def _lines_data(chart: Chart) -> dict[str, Any]:
    methods: dict[str, dict[str, Any]] = {}
    for line in chart.lines:
        method = methods.setdefault(line.method, {**_style_data(line), "label": ""})
        method["label"] = method["label"] or line.label.removesuffix(f" {line.part}")
    return {
        "axes": [_axis_data(axis) for axis in chart.axes],
        "y": {"label": chart.y_label, "scale": chart.y_scale},
        "marked": chart.marked,
        "methods": methods,
        "lines": [_line_data(line) for line in chart.lines],
    }


def _heat_map_data(chart: HeatMap) -> dict[str, Any]:
    return {
        "map": [_shortened(row) for row in chart.values],
        "x": chart.x,
        "y": chart.y,
        "xLabel": chart.x_label,
        "yLabel": chart.y_label,
        "valueLabel": chart.value_label,
        "title": chart.title,
    }


def _axis_data(axis: Axis) -> dict[str, Any]:
    return {
        "key": axis.key,
        "label": axis.label,
        "scale": axis.scale,
        "unit": axis.unit,
        "at": _shortened(axis.tick_values),
        "reverse": axis.reverse,
    }


def _line_data(line: Line) -> dict[str, Any]:
    data: dict[str, Any] = {
        "method": line.method,
        "part": line.part,
        "solid": line.solid,
        "x": {key: _shortened(x) for key, x in line.x.items()},
        "y": _shortened(y.mean for y in line.y),
    }
    if any(y.count > 1 for y in line.y):
        data["low"] = _shortened(y.low for y in line.y)
        data["high"] = _shortened(y.high for y in line.y)
        data["seeds"] = [y.count for y in line.y]
    if line.level is not None and math.isfinite(line.level):
        data["level"] = line.level
    return data


def _style_data(line: Line) -> dict[str, Any]:
    return {"colour": LINE_COLOURS.index(line.style.colour), "marker": line.style.marker, "dash": line.style.dash}


def _shortened(values: Iterable[float]) -> list[float | None]:
    """Return the values with five digits, None for those that are not finite."""
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in values]
