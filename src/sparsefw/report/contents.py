"""What a report is made of: every table and chart, made once, from which its sections are put together."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sparsefw.plotting.charts import Chart
from sparsefw.plotting.palette import looks_of
from sparsefw.report.charts import curves_chart, decay_chart, spectra_charts, training_chart
from sparsefw.report.families import Family, families
from sparsefw.report.names import differing, flat, shown
from sparsefw.report.records import Damaged, Run
from sparsefw.report.series import Comparison, compared, epochs_of, kinds_of, notes_on
from sparsefw.report.sizes import sizes_rows, sizes_table
from sparsefw.report.tables import Table, comparison_table, runs_table

MOST_METHODS = 12  # in one figure; of more, where none was measured on test images, the best of every family


@dataclass(frozen=True)
class Task:
    """Name what some runs of a report learned.

    alone   no run of the report learned anything else
    """

    number: int
    title: str
    alone: bool

    @property
    def name(self) -> str:
        """Name it in addresses and folders."""
        return f"task-{self.number}"

    @property
    def folder(self) -> str:
        """Name the folder of its files: one of its own where there are several tasks."""
        return "" if self.alone else self.name


@dataclass(frozen=True)
class Results:
    """Hold what all methods of one task keep at every size, for one kind and form of removal.

    size_rows   ratio -> a row per method: what is left, how good it is, and the command that makes that network
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
        """Tell what the addresses of its sections in a page begin with."""
        return f"{self.task.name}-{self.name}"


@dataclass(frozen=True)
class TaskContents:
    """Hold all about one task.

    all_training   training with the runs of sweeps, which are in heat maps and family tables only; None where there are none
    spectra        layer -> what -> chart
    """

    task: Task
    results: tuple[Results, ...]
    families: tuple[Family, ...]
    training: Chart | None
    all_training: Chart | None
    decay: Chart | None
    notes: tuple[str, ...]
    spectra: Mapping[str, Mapping[str, Chart]]

    @property
    def address(self) -> str:
        """Tell what the addresses of its sections in a page begin with."""
        return self.task.name


@dataclass(frozen=True)
class Contents:
    """Hold all about all runs.

    configurations   what differs between them; None where nothing does
    common           what does not differ
    """

    tasks: tuple[TaskContents, ...]
    runs: tuple[Run, ...]
    damaged: tuple[Damaged, ...]
    runs_table: Table
    configurations: Table | None
    common: Mapping[str, str]

    @property
    def task(self) -> None:
        """Name no task: this is about all of them."""
        return None

    @property
    def address(self) -> str:
        """Tell what the addresses of its sections in a page begin with."""
        return ""


def contents_of(runs: Sequence[Run], damaged: Sequence[Damaged] = ()) -> Contents:
    """Make all that a report of these runs holds."""
    titles = list(dict.fromkeys(run.task for run in runs))
    tasks = [Task(number, title, alone=len(titles) == 1) for number, title in enumerate(titles, 1)]
    parts = tuple(_task_contents(task, [run for run in runs if run.task == task.title]) for task in tasks)
    configs = [flat(run.config) for run in runs]
    keys = differing(configs)
    rows = tuple(
        (run.label, *("-" if config.get(key) is None else shown(config[key]) for key in keys))
        for run, config in zip(runs, configs, strict=True)
    )
    configurations = Table((), ("run", *keys), rows) if keys else None
    common = {key: shown(value) for key, value in configs[0].items() if key not in set(keys)} if configs else {}
    return Contents(parts, tuple(runs), tuple(damaged), runs_table(runs), configurations, common)


def _task_contents(task: Task, runs: Sequence[Run]) -> TaskContents:
    found = families(runs)
    split = "test" if any(run.has_curves("test") for run in runs) else "validation"
    drawn = _drawn_runs(runs, found, split)
    comparisons = [compared(drawn, kind, form, split) for kind, form in kinds_of(drawn, split)]
    style = looks_of([run.method for run in drawn] + [one.method for c in comparisons for one in c.series])
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
    epochs = sorted({epochs_of(run) for run in trained})
    notes = (f"Trained for {epochs[0]} to {epochs[-1]} epochs: not for equally long.",) if len(epochs) > 1 else ()
    return TaskContents(
        task,
        results,
        tuple(found),
        training_chart(trained, style) if trained else None,
        training_chart(runs) if more else None,
        decay_chart(trained, style),
        notes,
        spectra_charts(drawn, style),
    )


def _drawn_runs(runs: Sequence[Run], found: Sequence[Family], split: str) -> list[Run]:
    """Choose the runs in the figures of a task: the others, of a sweep, are in heat maps and family tables."""
    drawn = [run for run in runs if run.has_curves(split)] or list(runs)
    if split != "test" and len({run.method for run in drawn}) > MOST_METHODS:
        best = {one.tried[0].run.method for one in found}
        drawn = [run for run in drawn if run.method in best] or drawn
    return drawn


def file_name(text: str) -> str:
    """Make a name of files out of any text: kinds such as "2:4" name some, too."""
    return re.sub(r"[^A-Za-z0-9.-]+", "_", text)
