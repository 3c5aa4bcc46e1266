"""What a report holds: every figure and table, made once, for the page and for files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sparsefw.report.charts import Chart, HeatMap, curves_chart, decay_chart, spectra_charts, training_chart
from sparsefw.report.families import Family, families
from sparsefw.report.looks import Look, looks
from sparsefw.report.names import differing, flat, shown
from sparsefw.report.records import Run
from sparsefw.report.series import Comparison, compared, epochs_of, kinds_of, notes_on
from sparsefw.report.sizes import sizes_table
from sparsefw.report.tables import Table, comparison_table, runs_table

MANY = 12  # methods that one figure can show; of more, where none was measured on test images, the best of every family


@dataclass(frozen=True)
class Results:
    """One kind and form of one task: what all methods keep at every size."""

    name: str
    comparison: Comparison
    chart: Chart
    table: Table
    sizes: Table
    notes: tuple[str, ...]


@dataclass(frozen=True)
class TaskContents:
    """All about one task. shown: the runs in its figures; the others, of a sweep, are in heat maps and family tables."""

    task: str
    name: str
    runs: tuple[Run, ...]
    shown: tuple[Run, ...]
    style: Mapping[str, Look]
    results: tuple[Results, ...]
    families: tuple[Family, ...]
    training: Chart | None
    all_training: Chart | None
    decay: Chart | None
    notes: tuple[str, ...]
    spectra: Mapping[str, Mapping[str, Chart]]

    def maps(self) -> list[tuple[Family, HeatMap, HeatMap]]:
        return [(family, *pair) for family in self.families for pair in family.maps()]


@dataclass(frozen=True)
class Contents:
    tasks: tuple[TaskContents, ...]
    runs: Table
    configurations: Table | None
    common: Mapping[str, str]


def contents_of(runs: Sequence[Run]) -> Contents:
    tasks = list(dict.fromkeys(run.task for run in runs))
    parts = [_task(task, i, [run for run in runs if run.task == task]) for i, task in enumerate(tasks, 1)]
    configs = [flat(run.config) for run in runs]
    keys = differing(configs)
    rows = tuple(
        (run.label, *("-" if config.get(key) is None else shown(config[key]) for key in keys))
        for run, config in zip(runs, configs, strict=True)
    )
    common = {key: shown(value) for key, value in configs[0].items() if key not in set(keys)} if configs else {}
    return Contents(tuple(parts), runs_table(runs), Table((), ("run", *keys), rows) if keys else None, common)


def _task(task: str, number: int, runs: Sequence[Run]) -> TaskContents:
    found = families(runs)
    split = "test" if any(run.has_curves("test") for run in runs) else "validation"
    shown = [run for run in runs if run.has_curves(split)] or list(runs)
    if split != "test" and len({run.method for run in shown}) > MANY:
        best = {one.tried[0].run.method for one in found}
        shown = [run for run in shown if run.method in best] or shown
    comparisons = [compared(shown, kind, form, split) for kind, form in kinds_of(shown, split)]
    style = looks([run.method for run in shown] + [one.method for c in comparisons for one in c.series])
    results = tuple(
        Results(
            file_name(f"{comparison.kind}-{comparison.form}"),
            comparison,
            curves_chart(comparison, style),
            comparison_table(comparison),
            sizes_table(comparison, shown),
            tuple(notes_on(comparison)),
        )
        for comparison in comparisons
    )
    trained = [run for run in shown if run.epochs]
    more = any(run.epochs for run in runs if run not in shown)
    epochs = sorted({epochs_of(run) for run in trained})
    notes = (f"Trained for {epochs[0]} to {epochs[-1]} epochs: not for equally long.",) if len(epochs) > 1 else ()
    return TaskContents(
        task,
        f"task-{number}",
        tuple(runs),
        tuple(shown),
        style,
        results,
        tuple(found),
        training_chart(trained, style) if trained else None,
        training_chart(runs) if more else None,
        decay_chart(trained, style),
        notes,
        spectra_charts(shown, style),
    )


def file_name(text: str) -> str:
    """Kinds such as "2:4" name files, too."""
    return re.sub(r"[^A-Za-z0-9.-]+", "_", text)
