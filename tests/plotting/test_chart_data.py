"""Charts as JSON: rounded numbers, null for gaps, bands only if there are several seeds."""

from __future__ import annotations

import math

from sparsefw.plotting.chart_data import chart_data
from sparsefw.plotting.charts import Axis, Chart, HeatMap, Line, spread_of
from sparsefw.plotting.palette import LINE_COLOURS, line_styles


def line(*values, level=None):
    y = [spread_of(seeds) for seeds in values]
    return Line(
        "SGD plain", "SGD", "plain", line_styles({"SGD": "sgd"})["SGD"], False, {"ratio": [50.0, 200 / 3]}, y, level
    )


def test_a_line_without_seeds_has_no_band():
    chart = Chart((line([90.0], [math.nan], level=95.0),), (Axis("ratio", "filters removed", unit="%"),), "accuracy")
    data = chart_data(chart)
    assert data["methods"] == {
        "SGD": {"colour": len(LINE_COLOURS) - 1, "marker": "circle", "dash": "dash", "label": "SGD"}
    }
    assert data["lines"] == [
        {
            "method": "SGD",
            "part": "plain",
            "solid": False,
            "x": {"ratio": [50.0, 66.667]},
            "y": [90.0, None],
            "level": 95.0,
        }
    ]


def test_seeds_make_a_band():
    (data,) = chart_data(Chart((line([90.0, 92.0], [80.0]),), (Axis("ratio", "ratio"),), "accuracy"))["lines"]
    assert (data["low"], data["y"], data["high"], data["seeds"]) == ([90, 80], [91, 80], [92, 80], [2, 1])


def test_a_heat_map_has_null_for_pairs_that_were_not_measured():
    chart = HeatMap("title", "about", "k", "w", ("1", "2"), ("0.1",), ((80.0, math.nan),), "accuracy")
    data = chart_data(chart)
    assert data["map"] == [[80.0, None]]
    assert (data["x"], data["xLabel"], data["yLabel"]) == (("1", "2"), "k", "w")
