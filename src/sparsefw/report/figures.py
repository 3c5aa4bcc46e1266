"""The figures of runs as matplotlib draws them, for files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from matplotlib.figure import Figure

from sparsefw.report.canvas import draw
from sparsefw.report.charts import curves_chart, run_charts, sizes_title, training_chart
from sparsefw.report.panels import stacked_figure
from sparsefw.report.records import ReportError, Run
from sparsefw.report.series import compared


def curves_figure(runs: Sequence[Run], kind: str, form: str) -> Figure:
    """The metric against the ratio removed: plain dashed, refit solid, dense a thin line; min to max of the seeds as a band."""
    return draw(curves_chart(compared(runs, kind, form)))


def sizes_figure(runs: Sequence[Run], kind: str, key: str = "parameters") -> Figure:
    """The metric against the parameters (or macs, bytes, milliseconds) left, from the dense network to the smallest one."""
    comparison = compared(runs, kind, "removed")
    chart = curves_chart(comparison)
    if key not in {axis.key for axis in chart.axes}:
        raise ReportError(f"the curves {kind}-removed tell no {key}")
    return draw(replace(chart, title=sizes_title(comparison, key)), key)


def training_figure(runs: Sequence[Run]) -> Figure:
    """The metric after every epoch: validation solid where there is one, training dashed."""
    return draw(training_chart(runs))


def run_figure(run: Run) -> Figure:
    """The training of one run: the metric, and below it what became of the constrained weights, over the same epochs."""
    return stacked_figure(run_charts(run))
