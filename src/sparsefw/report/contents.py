"""The contents of a report: every table and chart, made once, from which its sections are put together."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sparsefw.config_base import flatten
from sparsefw.kinds import Kind
from sparsefw.plotting.charts import Chart
from sparsefw.plotting.palette import line_styles
from sparsefw.report.charts import curves_chart, decay_chart, spectra_charts, training_chart
from sparsefw.report.families import Family, families
from sparsefw.report.names import differing, shown
from sparsefw.report.records import Damaged, Run
from sparsefw.report.series import Comparison, compared, kinds_of, notes_on
from sparsefw.report.sizes import sizes_rows, sizes_table
from sparsefw.report.tables import Table, comparison_table, runs_table

MOST_METHODS = 12  # in one figure; of more methods without test curves, only the best of every family is drawn


@dataclass(frozen=True)
class Task:
    """The network and the data of some runs of a report.

    alone   whether all runs of the report are of this task
    """

    number: int
    title: str
    alone: bool

    @property
    def name(self) -> str:
        """The name in addresses and folders."""
        return f"task-{self.number}"

    @property
    def folder(self) -> str:
        """The folder of its files; empty where there is only one task."""
        return "" if self.alone else self.name


@dataclass(frozen=True)
class Results:
    """The results of all methods of one task, for one kind and form of removal.

    size_rows   ratio -> a row per method: its metric, its sizes, and the command that makes that network
    """

    task: Task
    name: str
    comparison: Comparison
    chart: Chart
    table: Table
    sizes: Table
    size_rows: Mapping[float, Sequence[tuple[str, ...]]]
    notes: tuple[str, ...]

    @property
    def address(self) -> str:
        """The prefix of its sections' addresses in a page."""
        return f"{self.task.name}-{self.name}"


@dataclass(frozen=True)
class TaskContents:
    """Everything about one task.

    all_training   training with the runs of sweeps that the other figures leave out; None where none are left out
    spectra        layer -> kind -> chart
    """

    task: Task
    results: tuple[Results, ...]
    families: tuple[Family, ...]
    training: Chart | None
    all_training: Chart | None
    decay: Chart | None
    notes: tuple[str, ...]
    spectra: Mapping[str, Mapping[Kind, Chart]]

    @property
    def address(self) -> str:
        """The prefix of its sections' addresses in a page."""
        return self.task.name


@dataclass(frozen=True)
class Contents:
    """Everything about all runs.

    configurations   the settings that differ between them; None where none do
    common           the settings that do not differ
    """

    tasks: tuple[TaskContents, ...]
    runs: tuple[Run, ...]
    damaged: tuple[Damaged, ...]
    runs_table: Table
    configurations: Table | None
    common: Mapping[str, str]

    @property
    def task(self) -> None:
        """None: these contents are about all tasks."""
        return None

    @property
    def address(self) -> str:
        """The prefix of its sections' addresses in a page."""
        return ""


def contents_of(runs: Sequence[Run], damaged: Sequence[Damaged] = ()) -> Contents:
    """Make all tables and charts of a report."""
    titles = list(dict.fromkeys(run.task for run in runs))
    tasks = [Task(number, title, alone=len(titles) == 1) for number, title in enumerate(titles, 1)]
    parts = tuple(_task_contents(task, [run for run in runs if run.task == task.title]) for task in tasks)
    configs = [flatten(run.record.config.values) for run in runs]
    keys = differing(configs)
    rows = tuple(
        (run.label, *("-" if config.get(key) is None else shown(config[key]) for key in keys))
        for run, config in zip(runs, configs, strict=True)
    )
    configurations = Table((), ("run", *keys), rows) if keys else None
    common = {key: shown(value) for key, value in configs[0].items() if key not in set(keys)} if configs else {}
    return Contents(parts, tuple(runs), tuple(damaged), runs_table(runs), configurations, common)


def _task_contents(task: Task, runs: Sequence[Run]) -> TaskContents:
    swept = families(runs)
    split = "test" if any(run.has_curves("test") for run in runs) else "validation"
    drawn = _drawn_runs(runs, swept, split)
    comparisons = [compared(drawn, kind, form, split) for kind, form in kinds_of(drawn, split)]
    methods = {run.method: run.method_name for run in drawn}
    for comparison in comparisons:
        methods |= {series.method: series.method_name for series in comparison.series}
    style = line_styles(methods)
    results = tuple(
        Results(
            task,
            file_name(f"{comparison.kind}-{comparison.form}"),
            comparison,
            curves_chart(comparison, style),
            comparison_table(comparison),
            sizes_table(comparison, drawn),
            sizes_rows(comparison, drawn),
            tuple(notes_on(comparison)),
        )
        for comparison in comparisons
    )
    trained = [run for run in drawn if run.epochs]
    more = any(run.epochs for run in runs if run not in drawn)
    epochs = sorted({run.planned_epochs for run in trained})
    notes = (f"Trained for {epochs[0]} to {epochs[-1]} epochs, not all equally long.",) if len(epochs) > 1 else ()
    return TaskContents(
        task,
        results,
        tuple(swept),
        training_chart(trained, style) if trained else None,
        training_chart(runs) if more else None,
        decay_chart(trained, style),
        notes,
        spectra_charts(drawn, style),
    )


def _drawn_runs(runs: Sequence[Run], swept: Sequence[Family], split: str) -> list[Run]:
    """Choose the runs in the figures of a task: the other runs of sweeps are in heat maps and family tables only."""
    drawn = [run for run in runs if run.has_curves(split)] or list(runs)
    if split != "test" and len({run.method for run in drawn}) > MOST_METHODS:
        best = {family.tried[0].run.method for family in swept}
        drawn = [run for run in drawn if run.method in best] or drawn
    return drawn


def file_name(text: str) -> str:
    """Return a text without the characters that file names should not have.

    >>> file_name("2:4-removed")
    '2_4-removed'
    """
    return re.sub(r"[^A-Za-z0-9.-]+", "_", text)
