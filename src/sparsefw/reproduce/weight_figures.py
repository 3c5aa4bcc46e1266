"""The figures on single weights, all from sweeps: two regions compared, their settings as heat maps, two step-size rules."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparsefw.plotting.charts import Chart, HeatMap, Line, spread_of
from sparsefw.plotting.palette import line_styles
from sparsefw.report.tables import Table
from sparsefw.reproduce.experiment import ExperimentOptions, ExperimentResult
from sparsefw.reproduce.paper_tables import SweepExperiment, comparison_chart, methods_of, metric_of, ratio_axis
from sparsefw.sweep.results import figure_cells
from sparsefw.sweep.sweep_plan import SweepPlan, settings_text

NO_NUMBERS = "the paper prints this figure without numbers, so there are no differences to list"


def _on_validation(figures: str) -> str:
    return f"{figures} are of validation images, because they compare configurations; the paper's are of test images"


def chosen_table(results: Mapping[str, Any]) -> Table:
    """Return a table of rows x ratios: mean and deviation over seeds of the chosen configurations."""
    header = ("", "dense", *(f"{100 * ratio:g} %" for ratio in results["at"]), "chosen")
    rows = [
        (name, *figure_cells(row, len(results["at"])), settings_text(row.get("settings") or {}))
        for name, row in results["rows"].items()
    ]
    return Table((), header, tuple(rows))


@dataclass(frozen=True)
class WeightsExperiment(SweepExperiment):
    """Test accuracy against removed weights, of the best configuration of each region."""

    def evaluate(
        self, options: ExperimentOptions, plan: SweepPlan, results: Mapping[str, Any], failed: Sequence[str]
    ) -> ExperimentResult:
        title = self.title(options)
        return ExperimentResult(
            title,
            {"Test figures": chosen_table(results)},
            {"curves": comparison_chart(results, None, title, methods_of(plan))},
            [*self.deviations(plan), NO_NUMBERS],
            {"sweep": results},
            failed,
        )


@dataclass(frozen=True)
class ContourExperiment(SweepExperiment):
    """The figures of every configuration over k and w: dense, and on average over the ratios; two heat maps per region."""

    def evaluate(
        self, options: ExperimentOptions, plan: SweepPlan, results: Mapping[str, Any], failed: Sequence[str]
    ) -> ExperimentResult:
        metric = metric_of(results)
        charts = {name: heat_maps(name, row["tried"], metric) for name, row in results["rows"].items() if row["tried"]}
        tables = {
            f"{name}, {heat_map.title}": heat_map_table(heat_map) for name, maps in charts.items() for heat_map in maps
        }
        deviations = [*self.deviations(plan), NO_NUMBERS, _on_validation("figures")]
        return ExperimentResult(self.title(options), tables, charts, deviations, {"sweep": results}, failed)


def heat_maps(row: str, tried: Mapping[str, Any], metric: str) -> list[HeatMap]:
    """Return the heat maps of a row's configurations over k and w: dense, and on average over the ratios."""
    at = {(trial["settings"]["method.k"], trial["settings"]["method.w"]): trial for trial in tried.values()}
    ks = sorted({k for k, _ in at})
    ws = sorted({w for _, w in at})

    def heat_map(title: str, value: Callable[[Mapping[str, Any]], float]) -> HeatMap:
        values = tuple(tuple(value(at[k, w]) if (k, w) in at else math.nan for w in ws) for k in ks)
        x = tuple(f"{w:g}" for w in ws)
        y = tuple(f"{k:g}" for k in ks)
        return HeatMap(title, f"{row}: validation {metric} in %", "w", "k", x, y, values, f"validation {metric}")

    def mean_pruned(trial: Mapping[str, Any]) -> float:
        return statistics.fmean(value or 0.0 for value in trial["plain"])

    return [heat_map("dense", lambda trial: trial["dense"]), heat_map("pruned, mean over the ratios", mean_pruned)]


def heat_map_table(heat_map: HeatMap) -> Table:
    header = (f"{heat_map.y_label} \\ {heat_map.x_label}", *heat_map.x)
    rows = [
        (name, *(f"{value:.2f}" for value in values)) for name, values in zip(heat_map.y, heat_map.values, strict=True)
    ]
    return Table((), header, tuple(rows))


@dataclass(frozen=True)
class RescalingExperiment(SweepExperiment):
    """The configuration that is best at each ratio: pruned, solid; and the same network before pruning, dashed."""

    def evaluate(
        self, options: ExperimentOptions, plan: SweepPlan, results: Mapping[str, Any], failed: Sequence[str]
    ) -> ExperimentResult:
        best = {
            name: best_at_every_ratio(row["tried"], len(results["at"]))
            for name, row in results["rows"].items()
            if row["tried"]
        }
        title = self.title(options)
        header = ("", *(f"{100 * ratio:g} %" for ratio in results["at"]))
        rows = [
            (f"{name}, {state}", *(f"{value:.2f}" for value in values))
            for name, figures in best.items()
            for state, values in zip(("pruned", "dense"), figures, strict=True)
        ]
        tables = {
            "Best at every ratio, validation": Table((), header, tuple(rows)),
            "Chosen once, test": chosen_table(results),
        }
        return ExperimentResult(
            title,
            tables,
            {"curves": _best_chart(title, results, best, methods_of(plan))},
            [*self.deviations(plan), NO_NUMBERS, _on_validation("the figure's values")],
            {"sweep": results, "best": best},
            failed,
        )


def _best_chart(
    title: str,
    results: Mapping[str, Any],
    best: Mapping[str, tuple[list[float], list[float]]],
    methods: Mapping[str, str],
) -> Chart:
    styles = line_styles({name: methods[name] for name in best})
    x = {"ratio": [100 * ratio for ratio in results["at"]]}
    lines = []
    for name, (pruned, dense) in best.items():
        for state, values, solid in (("pruned", pruned, True), ("dense", dense, False)):
            y = [spread_of([value]) for value in values]
            lines.append(Line(f"{name}, {state}", name, state, styles[name], solid, x, y))
    subtitle = "For each rule, the configuration that is best at each ratio: pruned solid, before pruning dashed."
    axis = ratio_axis(results["at"], "weights")
    return Chart(tuple(lines), (axis,), f"validation {metric_of(results)}", title=title, subtitle=subtitle)


def best_at_every_ratio(tried: Mapping[str, Any], ratios: int) -> tuple[list[float], list[float]]:
    """Return the best pruned figure at every ratio, and the dense figure of the same network."""
    best = [max(tried.values(), key=lambda trial: trial["plain"][i] or 0.0) for i in range(ratios)]
    pruned = [trial["plain"][i] or 0.0 for i, trial in enumerate(best)]
    return pruned, [trial["dense"] for trial in best]
