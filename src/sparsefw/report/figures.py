"""Figures of runs, drawn by matplotlib, for files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from matplotlib.figure import Figure

from sparsefw.plotting.chart_groups import draw_stacked_charts
from sparsefw.plotting.line_chart import draw_chart
from sparsefw.report.charts import curves_chart, run_charts, sizes_title, training_chart
from sparsefw.report.records import ReportError, Run
from sparsefw.report.series import compared


def curves_figure(runs: Sequence[Run], kind: str, form: str) -> Figure:
    """Draw the metric against the ratio removed: plain dashed, refit solid, dense a thin line, all seeds as a band."""
    return draw_chart(curves_chart(compared(runs, kind, form)))


def sizes_figure(runs: Sequence[Run], kind: str, key: str = "parameters") -> Figure:
    """Draw the metric against the parameters (or macs, bytes, milliseconds) left, from dense to the smallest network."""
    comparison = compared(runs, kind, "removed")
    chart = curves_chart(comparison)
    if key not in {axis.key for axis in chart.axes}:
        raise ReportError(f"the curves {kind}-removed do not state {key}")
    return draw_chart(replace(chart, title=sizes_title(comparison, key)), key)


def training_figure(runs: Sequence[Run]) -> Figure:
    """Draw the metric after every epoch: validation solid where there is one, training dashed."""
    return draw_chart(training_chart(runs))


def run_figure(run: Run) -> Figure:
    """Draw the training of one run: the metric, and below it the state of the constrained weights."""
    return draw_stacked_charts(run_charts(run))
