"""The paper's tables: a sweep each, and our figures beside the paper's, cell by cell."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparsefw.bench import STEADY, measure_training_speed
from sparsefw.config_base import parse
from sparsefw.kinds import kind_of
from sparsefw.plotting.charts import Axis, Chart, Line, Spread, spread_of
from sparsefw.plotting.palette import looks_of
from sparsefw.report.series import SHOWN
from sparsefw.report.tables import Table
from sparsefw.reproduce.experiment import QUICK_STEM, Experiment, Findings, Setting
from sparsefw.reproduce.paper import SEEDS, PaperTable, deviations, paper
from sparsefw.sweep.grids import load_grid
from sparsefw.sweep.run import begin_sweep, run_sweep
from sparsefw.sweep.select import in_figures
from sparsefw.sweep.storage import storage_url
from sparsefw.sweep.sweep_plan import SweepPlan
from sparsefw.text import counted

SECONDS, QUICK_SECONDS = 5.0, 0.5  # that a rate is measured for


@dataclass(frozen=True)
class Swept(Experiment):
    """An experiment that is one sweep. Those with the same grid share its trainings."""

    name: str
    shows: str
    grid: str
    quick: str
    setup: str

    def plan(self, setting: Setting) -> SweepPlan:
        whole = load_grid(self.grid)
        grid = load_grid(self.quick).model_copy(update={"at": whole.at}) if setting.quick else whole
        seeds = setting.count(SEEDS)
        name = f"quick-{self.grid}" if setting.quick else self.grid
        asked = {"name": name, "grid": grid, "changes": setting.changes, "seeds": seeds}
        return parse(SweepPlan, asked, f"reproduce {self.name}")

    def planned(self, setting: Setting) -> list[str]:
        plan = self.plan(setting)
        seeds, epochs = counted(plan.seeds, "seed"), counted(plan.example(plan.rows[0]).train.epochs, "epoch")
        counts = [f"{row}: {counted(plan.count(row), 'configuration')}, {seeds} of the best" for row in plan.rows]
        total = sum(plan.count(row) + plan.seeds - 1 for row in plan.rows)
        return [
            *counts,
            f"{total} trainings of {epochs}; the best have their first seed already",
            *self.deviations(plan),
        ]

    def deviations(self, plan: SweepPlan) -> list[str]:
        return deviations(plan.example(plan.rows[0]), paper().setups[self.setup], plan.seeds, plan.changes)

    def swept(self, setting: Setting) -> tuple[SweepPlan, dict[str, Any]]:
        plan = self.plan(setting)
        folder = setting.folder / plan.name / "sweep"
        url = storage_url(setting.storage, folder)
        found = run_sweep(begin_sweep(plan, url, folder, setting.data), url, setting.workers, setting.data, setting.say)
        return plan, found

    def run(self, setting: Setting) -> Findings:
        plan, found = self.swept(setting)
        failed = [f"{row} {job}: {error}" for row, one in found["rows"].items() for job, error in one["failed"].items()]
        return self.findings(setting, plan, found, failed)

    @abstractmethod
    def findings(
        self, setting: Setting, plan: SweepPlan, found: Mapping[str, Any], failed: Sequence[str]
    ) -> Findings: ...


@dataclass(frozen=True)
class TableExperiment(Swept):
    """rates: whether the table has a column of training images per second."""

    rates: bool = False

    @property
    def table(self) -> PaperTable:
        return paper().tables[self.name]

    def findings(self, setting: Setting, plan: SweepPlan, found: Mapping[str, Any], failed: Sequence[str]) -> Findings:
        measured = self._measured(setting, plan, found) if self.rates else None
        rates = None if measured is None else measured[0]
        what = (
            f"{metric_of(found)} in % with {kind_of(plan.grid.kind).units} removed, never retrained, beside the paper"
        )
        title = f"{self.title(setting)}: {what}"
        told = self.deviations(plan)
        if measured is not None:
            told += [said for said in [busy(measured[1])] if said]
            told.append("images/s: on this machine, NUC, SVDEnergy and TRP without full SVDs; the paper: on a V100")
        return Findings(
            title,
            {"Ours, the paper, and the difference; bold: above the paper's": beside(found, self.table, rates)},
            {"curves": comparison_chart(found, self.table, title)},
            told,
            {"sweep": found, "paper": self.table.model_dump(), "rates": rates},
            failed,
        )

    def _measured(
        self, setting: Setting, plan: SweepPlan, found: Mapping[str, Any]
    ) -> tuple[dict[str, float], Mapping[str, Any]]:
        """Measured one after the other once the sweep is over: trainings beside each other would slow each other down."""
        stem = QUICK_STEM if setting.quick else plan.grid.recipe
        rows = {row: bench_row(row, found["rows"][row].get("settings") or {}) for row in plan.rows}
        seconds = QUICK_SECONDS if setting.quick else SECONDS
        measured = measure_training_speed(stem, setting.data, seconds, setting.changes, sorted(set(rows.values())))
        return {row: measured["rows"][key]["images_per_second"] for row, key in rows.items()}, measured


def busy(measured: Mapping[str, Any]) -> str | None:
    """A sentence where SGD itself was not equally fast at the beginning and at the end."""
    drift = measured["drift"]
    if abs(drift) <= STEADY:
        return None
    return f"images/s are worth little: SGD's changed by {drift:+.0%} meanwhile, the machine was busy"


def bench_row(row: str, settings: Mapping[str, Any]) -> str:
    """What `sparsefw bench train` calls the row; of SparseFW the form with the nearer k."""
    if row == "SparseFW":
        return "rank-0.1" if settings.get("method.k", 0.1) <= 0.2 else "rank-0.3"
    return row.lower()


def metric_of(found: Mapping[str, Any]) -> str:
    metrics = {row["test"]["metric"] for row in found["rows"].values() if row.get("test")}
    return SHOWN.get(next(iter(metrics), "accuracy"), "metric")


def beside(found: Mapping[str, Any], table: PaperTable, rates: Mapping[str, float] | None = None) -> Table:
    """Three lines per method: ours, the paper's, and the difference; bold what is above the paper's."""
    header = ("", "", *(["images/s"] if rates is not None else []), "dense", *(f"{100 * r:g} %" for r in table.at))
    rows: list[tuple[str, ...]] = []
    strong = set()
    for row, theirs in table.rows.items():
        test = found["rows"].get(row, {}).get("test")
        ours = [cell["mean"] for cell in test["plain"]] if test else [None] * len(theirs)
        first = [f"{rates[row]:,.0f}" if row in rates else "-"] if rates is not None else []
        second = [f"{table.rates[row]:,.0f}"] if rates is not None else []
        third = [""] if rates is not None else []
        cells = [in_figures(cell) for cell in test["plain"]] if test else ["-"] * len(theirs)
        rows.append((row, "ours", *first, in_figures(test["dense"]) if test else "-", *cells))
        rows.append(("", "paper", *second, "-", *(f"{mean:.2f} ±{std:.2f}" for mean, std in theirs)))
        differences = [_difference(mine, cell[0]) for mine, cell in zip(ours, theirs, strict=True)]
        rows.append(("", "difference", *third, "", *differences))
        strong |= {
            (len(rows) - 3, len(header) - len(ours) + i)
            for i, d in enumerate(differences)
            if d[0] == "+" and d != "+0.00"
        }
    return Table((), header, tuple(rows), frozenset(strong))


def _difference(ours: float | None, theirs: float) -> str:
    return "-" if ours is None or math.isnan(ours) else f"{ours - theirs:+.2f}"


def ratio_axis(at: Sequence[float], kind: str) -> Axis:
    close = max(at) > 0.9
    ratios = tuple(100 * ratio for ratio in at)
    return Axis("ratio", f"{kind_of(kind).units} set to zero", "kept" if close else "linear", "%", ratios)


def over_seeds(runs: Sequence[Mapping[str, Any]], key: str) -> list[Spread]:
    """At every ratio, from the worst to the best seed."""
    columns = zip(*(run[key] for run in runs), strict=True)
    return [spread_of([math.nan if value is None else value for value in column]) for column in columns]


def comparison_chart(found: Mapping[str, Any], table: PaperTable | None, title: str) -> Chart:
    """Ours solid, with bands over seeds; the paper's dashed."""
    style = looks_of(found["rows"])
    lines = []
    at = [100 * ratio for ratio in found["at"]]
    for row, one in found["rows"].items():
        if one.get("test"):
            runs = one["test"]["runs"]
            lines.append(Line(row, row, "ours", style[row], True, {"ratio": at}, over_seeds(runs, "plain")))
        if table is not None and row in table.rows:
            theirs = [Spread(mean, mean - std, mean + std, std, 1) for mean, std in table.rows[row]]
            x = {"ratio": [100 * ratio for ratio in table.at]}
            lines.append(Line(f"{row}, paper", row, "paper", style[row], False, x, theirs))
    told = "Solid: ours, bands from the worst to the best seed." + " Dashed: the paper." * (table is not None)
    return Chart(
        tuple(lines), (ratio_axis(found["at"], found["kind"]),), f"test {metric_of(found)}", title=title, subtitle=told
    )
