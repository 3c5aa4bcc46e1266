"""The figures on single weights that are read off a sweep: two regions, their settings as heat maps, two rules for steps."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparsefw.plotting.charts import Chart, HeatMap, Line, spread_of
from sparsefw.plotting.palette import looks_of
from sparsefw.report.tables import Table
from sparsefw.reproduce.experiment import Findings, Setting
from sparsefw.reproduce.paper_tables import Swept, comparison_chart, metric_of, ratio_axis
from sparsefw.sweep.select import in_figures
from sparsefw.sweep.sweep_plan import SweepPlan, in_words

NO_NUMBERS = "the paper prints this figure without numbers: nothing to subtract"


def _on_validation(what: str) -> str:
    return f"{what} are of validation images, since configurations are compared; the paper's are of test images"


def chosen_table(found: Mapping[str, Any]) -> Table:
    """Rows x ratios, mean and deviation over seeds."""
    header = ("", "dense", *(f"{100 * ratio:g} %" for ratio in found["at"]), "chosen")
    rows = []
    for row, one in found["rows"].items():
        test = one.get("test")
        cells = [in_figures(cell) for cell in (test["dense"], *test["plain"])] if test else []
        rows.append((row, *(cells or ["-"] * (len(header) - 2)), in_words(one.get("settings") or {})))
    return Table((), header, tuple(rows))


@dataclass(frozen=True)
class Unstructured(Swept):
    """Test accuracy against weights removed, of the best configuration of each region."""

    def findings(self, setting: Setting, plan: SweepPlan, found: Mapping[str, Any], failed: Sequence[str]) -> Findings:
        chart = comparison_chart(found, None, self.title(setting))
        told = [*self.deviations(plan), NO_NUMBERS]
        return Findings(
            self.title(setting),
            {"Test figures": chosen_table(found)},
            {"curves": chart},
            told,
            {"sweep": found},
            failed,
        )


@dataclass(frozen=True)
class Contour(Swept):
    """Every configuration: dense, and on average over the ratios, over k and w; a pair of heat maps per region."""

    def findings(self, setting: Setting, plan: SweepPlan, found: Mapping[str, Any], failed: Sequence[str]) -> Findings:
        charts = {
            row: heat_maps(row, one["tried"], metric_of(found)) for row, one in found["rows"].items() if one["tried"]
        }
        tables = {f"{row}, {chart.title}": map_table(chart) for row, maps in charts.items() for chart in maps}
        told = [*self.deviations(plan), NO_NUMBERS, _on_validation("figures")]
        return Findings(self.title(setting), tables, charts, told, {"sweep": found}, failed)


def heat_maps(row: str, tried: Mapping[str, Any], metric: str) -> list[HeatMap]:
    ks = sorted({one["settings"]["method.k"] for one in tried.values()})
    ws = sorted({one["settings"]["method.w"] for one in tried.values()})
    at = {(one["settings"]["method.k"], one["settings"]["method.w"]): one for one in tried.values()}

    def grid(value: Any) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(value(at[k, w]) if (k, w) in at else float("nan") for w in ws) for k in ks)

    def one_map(title: str, value: Any) -> HeatMap:
        names = tuple(f"{w:g}" for w in ws), tuple(f"{k:g}" for k in ks)
        return HeatMap(title, f"{row}: validation {metric} in %", "w", "k", *names, grid(value), f"validation {metric}")

    def after(one: Mapping[str, Any]) -> float:
        return statistics.fmean(0.0 if value is None else value for value in one["plain"])

    return [one_map("dense", lambda one: one["dense"]), one_map("pruned, mean over the ratios", after)]


def map_table(chart: HeatMap) -> Table:
    header = (f"{chart.y_label} \\ {chart.x_label}", *chart.x)
    rows = [(name, *(f"{value:.2f}" for value in values)) for name, values in zip(chart.y, chart.values, strict=True)]
    return Table((), header, tuple(rows))


@dataclass(frozen=True)
class Rescaling(Swept):
    """At every ratio the configuration that is best there: pruned solid, the same network dense dashed."""

    def findings(self, setting: Setting, plan: SweepPlan, found: Mapping[str, Any], failed: Sequence[str]) -> Findings:
        best = {
            row: best_at_every_ratio(one["tried"], found["at"]) for row, one in found["rows"].items() if one["tried"]
        }
        style = looks_of(best)
        x = {"ratio": [100 * ratio for ratio in found["at"]]}
        lines = []
        for row, (pruned, dense) in best.items():
            lines.append(Line(f"{row}, pruned", row, "pruned", style[row], True, x, [spread_of([v]) for v in pruned]))
            lines.append(Line(f"{row}, dense", row, "dense", style[row], False, x, [spread_of([v]) for v in dense]))
        subtitle = "Of each rule and at every ratio the best configuration: pruned solid, before pruning dashed."
        axis, label = ratio_axis(found["at"], "weights"), f"validation {metric_of(found)}"
        chart = Chart(tuple(lines), (axis,), label, title=self.title(setting), subtitle=subtitle)
        header = ("", *(f"{100 * ratio:g} %" for ratio in found["at"]))
        rows = [
            (f"{row}, {what}", *(f"{value:.2f}" for value in values))
            for row, both in best.items()
            for what, values in zip(("pruned", "dense"), both, strict=True)
        ]
        tables = {
            "Best at every ratio, validation": Table((), header, tuple(rows)),
            "Chosen once, test": chosen_table(found),
        }
        told = [*self.deviations(plan), NO_NUMBERS, _on_validation("the figure's values")]
        return Findings(self.title(setting), tables, {"curves": chart}, told, {"sweep": found, "best": best}, failed)


def best_at_every_ratio(tried: Mapping[str, Any], at: Sequence[float]) -> tuple[list[float], list[float]]:
    """Pruned, and the same network's dense figure."""
    winners = [max(tried.values(), key=lambda one: one["plain"][i] or 0.0) for i in range(len(at))]
    return [one["plain"][i] or 0.0 for i, one in enumerate(winners)], [one["dense"] for one in winners]
