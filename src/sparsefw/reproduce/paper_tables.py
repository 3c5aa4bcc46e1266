"""The paper's tables: one sweep each, with our figures beside the paper's, cell by cell."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sparsefw.config_base import parse
from sparsefw.kinds import kind_of
from sparsefw.plotting.charts import Axis, Chart, Line, Spread, spread_of
from sparsefw.plotting.palette import line_styles
from sparsefw.report.series import METRIC_NAMES
from sparsefw.report.tables import Table
from sparsefw.reproduce.experiment import QUICK_STEM, Experiment, ExperimentOptions, ExperimentResult
from sparsefw.reproduce.paper import SEEDS, PaperTable, find_deviations, paper
from sparsefw.reproduce.throughput import drift_warning, measure_rates
from sparsefw.sweep.grids import load_grid
from sparsefw.sweep.results import figure_cells
from sparsefw.sweep.storage import storage_url
from sparsefw.sweep.supervisor import begin_sweep, run_sweep
from sparsefw.sweep.sweep_plan import SweepPlan
from sparsefw.text import counted

SPARSEFW = "sparsefw"  # the name of the method in grids


@dataclass(frozen=True)
class SweepExperiment(Experiment):
    """An experiment that is one sweep. Experiments with the same grid share its trainings.

    grid         the grid of the sweep
    quick_grid   the grid of its quick version
    setup        the paper's set-up to compare with
    """

    grid: str
    quick_grid: str
    setup: str

    def plan(self, options: ExperimentOptions) -> SweepPlan:
        grid = load_grid(self.grid)
        name = self.grid
        if options.quick:
            grid = load_grid(self.quick_grid).model_copy(update={"at": grid.at})
            name = f"quick-{self.grid}"
        values = {"name": name, "grid": grid, "changes": options.changes, "seeds": options.seeds_or(SEEDS)}
        return parse(SweepPlan, values, f"reproduce {self.name}")

    def describe(self, options: ExperimentOptions) -> list[str]:
        plan = self.plan(options)
        seeds = counted(plan.seeds, "seed")
        epochs = counted(plan.example(plan.rows[0]).train.epochs, "epoch")
        total = sum(plan.count(row) + plan.seeds - 1 for row in plan.rows)
        return [
            *(f"{row}: {counted(plan.count(row), 'configuration')}, {seeds} of the best" for row in plan.rows),
            f"{total} trainings of {epochs}; the first seed of the best is trained already",
            *self.deviations(plan),
        ]

    def deviations(self, plan: SweepPlan) -> list[str]:
        config = plan.example(plan.rows[0])
        return find_deviations(config, paper().setups[self.setup], plan.seeds, plan.changes)

    def run(self, options: ExperimentOptions) -> ExperimentResult:
        plan = self.plan(options)
        folder = options.folder / plan.name / "sweep"
        url = storage_url(options.storage, folder)
        sweep = begin_sweep(plan, url, folder, options.data, options.trust)
        results = run_sweep(sweep, url, options.worker_count, options.data, options.log)
        failed = [
            f"{name} {job}: {error}" for name, row in results["rows"].items() for job, error in row["failed"].items()
        ]
        return self.evaluate(options, plan, results, failed)

    @abstractmethod
    def evaluate(
        self, options: ExperimentOptions, plan: SweepPlan, results: Mapping[str, Any], failed: Sequence[str]
    ) -> ExperimentResult:
        """Turn the results of the sweep into tables and figures."""


@dataclass(frozen=True)
class TableExperiment(SweepExperiment):
    """A table of the paper; has_rates: whether it has a column of training images per second."""

    has_rates: bool = False

    @property
    def table(self) -> PaperTable:
        return paper().tables[self.name]

    def evaluate(
        self, options: ExperimentOptions, plan: SweepPlan, results: Mapping[str, Any], failed: Sequence[str]
    ) -> ExperimentResult:
        units = kind_of(plan.grid.kind).units
        figures = f"{metric_of(results)} in % with {units} removed, never retrained, beside the paper"
        title = f"{self.title(options)}: {figures}"
        deviations = self.deviations(plan)
        rates = None
        if self.has_rates:
            rates, warning = self._measure_rates(options, plan, results)
            deviations += [] if warning is None else [warning]
            deviations.append(
                "images/s: on this machine, NUC, SVDEnergy and TRP without full SVDs; the paper: on a V100"
            )
        table = comparison_table(results, self.table, rates)
        return ExperimentResult(
            title,
            {"Ours, the paper, and the difference; bold: above the paper's": table},
            {"curves": comparison_chart(results, self.table, title, methods_of(plan))},
            deviations,
            {"sweep": results, "paper": self.table.model_dump(), "rates": rates},
            failed,
        )

    def _measure_rates(
        self, options: ExperimentOptions, plan: SweepPlan, results: Mapping[str, Any]
    ) -> tuple[dict[str, float], str | None]:
        """Measure images per second of every row, and return a warning if the machine was busy.

        After the sweep, one row after the other: trainings that run at the same time would slow each other down.
        """
        stem = QUICK_STEM if options.quick else plan.grid.recipe
        bench_rows = {
            name: bench_row(row.method["name"], results["rows"][name].get("settings") or {})
            for name, row in plan.grid.methods.items()
        }
        measured = measure_rates(stem, options, sorted(set(bench_rows.values())))
        rates = {name: measured["rows"][row]["images_per_second"] for name, row in bench_rows.items()}
        return rates, drift_warning(measured)


def bench_row(method: str, settings: Mapping[str, Any]) -> str:
    """Return the row of `sparsefw bench train` that measures a method; of SparseFW, the one with the closer k."""
    if method == SPARSEFW:
        return "rank-0.1" if settings.get("method.k", 0.1) <= 0.2 else "rank-0.3"
    return method


def metric_of(results: Mapping[str, Any]) -> str:
    metrics = {row["test"]["metric"] for row in results["rows"].values() if row.get("test")}
    return METRIC_NAMES.get(next(iter(metrics), "accuracy"), "metric")


def comparison_table(results: Mapping[str, Any], table: PaperTable, rates: Mapping[str, float] | None = None) -> Table:
    """Return three lines per method: ours, the paper's, and the difference; figures above the paper's are bold."""
    rate_header = [] if rates is None else ["images/s"]
    header = ("", "", *rate_header, "dense", *(f"{100 * ratio:g} %" for ratio in table.at))
    first_figure = len(header) - len(table.at)
    rows: list[tuple[str, ...]] = []
    bold = set()
    for name, theirs in table.rows.items():
        row = results["rows"].get(name, {})
        our_rate, paper_rate, no_rate = _rate_cells(name, table, rates)
        means = [figure["mean"] for figure in row["test"]["plain"]] if row.get("test") else [None] * len(theirs)
        differences = [_difference(ours, paper_mean) for ours, (paper_mean, _) in zip(means, theirs, strict=True)]
        for i, difference in enumerate(differences):
            if difference[0] == "+" and difference != "+0.00":
                bold.add((len(rows), first_figure + i))
        rows.append((name, "ours", *our_rate, *figure_cells(row, len(theirs))))
        rows.append(("", "paper", *paper_rate, "-", *(f"{mean:.2f} ±{std:.2f}" for mean, std in theirs)))
        rows.append(("", "difference", *no_rate, "", *differences))
    return Table((), header, tuple(rows), frozenset(bold))


def _rate_cells(
    name: str, table: PaperTable, rates: Mapping[str, float] | None
) -> tuple[list[str], list[str], list[str]]:
    """Return the cells of the column images/s in the three lines of a method; no cells without rates."""
    if rates is None:
        return [], [], []
    return [f"{rates[name]:,.0f}" if name in rates else "-"], [f"{table.rates[name]:,.0f}"], [""]


def _difference(ours: float | None, theirs: float) -> str:
    return "-" if ours is None or math.isnan(ours) else f"{ours - theirs:+.2f}"


def ratio_axis(ratios: Sequence[float], kind: str) -> Axis:
    percentages = tuple(100 * ratio for ratio in ratios)
    scale: Literal["kept", "linear"] = "kept" if max(ratios) > 0.9 else "linear"
    return Axis("ratio", f"{kind_of(kind).units} set to zero", scale, "%", percentages)


def spread_over_seeds(runs: Sequence[Mapping[str, Any]], key: str) -> list[Spread]:
    """Return the spread over seeds of a figure at every ratio."""
    columns = zip(*(run[key] for run in runs), strict=True)
    return [spread_of([math.nan if value is None else value for value in column]) for column in columns]


def methods_of(plan: SweepPlan) -> dict[str, str]:
    """Return the registered name of the method of every row."""
    return {name: row.method["name"] for name, row in plan.grid.methods.items()}


def comparison_chart(
    results: Mapping[str, Any], table: PaperTable | None, title: str, methods: Mapping[str, str]
) -> Chart:
    """Return our curves, solid, with bands over seeds; and the paper's, dashed, if a table is given.

    Args:
        results: of the sweep
        table: of the paper
        title: of the chart
        methods: the registered name of the method of every row
    """
    styles = line_styles({name: methods[name] for name in results["rows"]})
    lines = []
    x = {"ratio": [100 * ratio for ratio in results["at"]]}
    for name, row in results["rows"].items():
        if row.get("test"):
            figures = spread_over_seeds(row["test"]["runs"], "plain")
            lines.append(Line(name, name, "ours", styles[name], True, x, figures))
        if table is not None and name in table.rows:
            figures = [Spread(mean, mean - std, mean + std, std, 1) for mean, std in table.rows[name]]
            paper_x = {"ratio": [100 * ratio for ratio in table.at]}
            lines.append(Line(f"{name}, paper", name, "paper", styles[name], False, paper_x, figures))
    subtitle = "Solid: ours, bands from the worst to the best seed."
    if table is not None:
        subtitle += " Dashed: the paper."
    axis = ratio_axis(results["at"], results["kind"])
    return Chart(tuple(lines), (axis,), f"test {metric_of(results)}", title=title, subtitle=subtitle)
