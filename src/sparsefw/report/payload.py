"""Charts as the data that page.js draws with Plotly: JSON, short, and harmless wherever its text comes from."""

from __future__ import annotations

import json
import math
from typing import Any

from sparsefw.report.charts import Chart, HeatMap, Line
from sparsefw.report.looks import COLOURS


def chart_data(chart: Chart) -> dict[str, Any]:
    methods: dict[str, dict[str, Any]] = {}
    for line in chart.lines:
        own = methods.setdefault(line.method, {**_look(line), "label": ""})
        own["label"] = own["label"] or line.label.removesuffix(f" {line.part}")
    return {
        "axes": [
            {
                "key": axis.key,
                "label": axis.label,
                "scale": axis.scale,
                "unit": axis.unit,
                "at": _short(axis.at),
                "reverse": axis.reverse,
            }
            for axis in chart.axes
        ],
        "y": {"label": chart.y_label, "scale": chart.y_scale},
        "marked": chart.marked,
        "methods": methods,
        "lines": [_line(line) for line in chart.lines],
    }


def map_data(chart: HeatMap) -> dict[str, Any]:
    return {
        "map": [_short(row) for row in chart.values],
        "x": chart.x,
        "y": chart.y,
        "xLabel": chart.x_label,
        "yLabel": chart.y_label,
        "valueLabel": chart.value_label,
        "title": chart.title,
    }


def as_script(data: Any) -> str:
    """JSON that can stand between script tags: nothing in it ends them or begins a comment."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _line(line: Line) -> dict[str, Any]:
    found: dict[str, Any] = {
        "method": line.method,
        "part": line.part,
        "solid": line.solid,
        "x": {key: _short(x) for key, x in line.x.items()},
        "y": _short([y.mean for y in line.y]),
    }
    if any(y.count > 1 for y in line.y):
        found |= {"low": _short([y.low for y in line.y]), "high": _short([y.high for y in line.y])}
        found["seeds"] = [y.count for y in line.y]
    if line.level is not None and math.isfinite(line.level):
        found["level"] = line.level
    return found


def _look(line: Line) -> dict[str, Any]:
    return {"colour": COLOURS.index(line.look.colour), "marker": line.look.marker, "dash": line.look.dash}


def _short(values: Any) -> list[float | None]:
    """Five digits; what is no number is null."""
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in values]
