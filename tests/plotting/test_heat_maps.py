"""Heat maps: values and gaps as text."""

from __future__ import annotations

import math

from sparsefw.plotting.charts import HeatMap
from sparsefw.plotting.heat_maps import draw_heat_maps


def test_cells_show_values_and_gaps_unless_there_are_many():
    chart = HeatMap("title", "about", "k", "w", ("1", "2"), ("0.1",), ((80.0, math.nan),), "accuracy")
    axes = draw_heat_maps([chart, chart]).axes[0]
    assert [text.get_text() for text in axes.texts] == ["80.0", "-"]
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title(loc="left")) == ("k", "w", "title")
    many = HeatMap("", "", "k", "w", tuple(map(str, range(11))), ("1",), ((1.0,) * 11,), "accuracy")
    assert not draw_heat_maps([many]).axes[0].texts
