"""Every figure of a report as PNG and SVG, every table as CSV, LaTeX and Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sparsefw.durable import write_text
from sparsefw.report.canvas import draw, save_figure
from sparsefw.report.charts import SPECTRA, sizes_title
from sparsefw.report.contents import Contents, Results, TaskContents, contents_of, file_name
from sparsefw.report.panels import layers_figure, maps_figure
from sparsefw.report.records import ReportError, Run
from sparsefw.report.tables import Table


def write_files(folder: Path, runs: Sequence[Run]) -> list[Path]:
    """All that these runs allow; one set per task, in a folder of its own if there are several."""
    contents = contents_of(runs)
    try:
        return _write(folder, contents)
    except OSError as error:
        raise ReportError(f"cannot write {folder}: {error.strerror}") from error


def _write(folder: Path, contents: Contents) -> list[Path]:
    written = save_table(contents.runs, folder / "runs")
    if contents.configurations is not None:
        written += save_table(contents.configurations, folder / "configurations")
    for task in contents.tasks:
        place = folder / task.name if len(contents.tasks) > 1 else folder
        for results in task.results:
            written += _results(results, place)
        written += _sweeps(task, place)
        if task.training is not None:
            written += save_figure(draw(task.training), place / "training")
        if task.decay is not None:
            written += save_figure(draw(task.decay), place / "decay")
        for what in SPECTRA:
            if charts := {layer: both[what] for layer, both in task.spectra.items()}:
                title = f"{what.capitalize()} of every layer, largest first, relative to the largest"
                written += save_figure(layers_figure(charts, title), place / file_name(f"spectra-{what}"))
    return written


def _results(results: Results, place: Path) -> list[Path]:
    written = save_table(results.table, place / results.name) + save_table(
        results.sizes, place / f"{results.name}-sizes"
    )
    for number, axis in enumerate(results.chart.axes):
        title = results.chart.title if number == 0 else sizes_title(results.comparison, axis.key)
        stem = results.name if number == 0 else f"{results.name}-{axis.key}"
        written += save_figure(draw(replace(results.chart, title=title), axis.key), place / stem)
    return written


def _sweeps(task: TaskContents, place: Path) -> list[Path]:
    written = []
    for family in task.families:
        stem = file_name(f"sweep-{family.name}-{family.kind}-{family.form}-{family.split}")
        written += save_table(family.table(), place / stem)
        for both in family.maps():
            name = file_name(f"{stem}-{both[0].x_label}-{both[0].y_label}")
            written += save_figure(maps_figure(both), place / name)
    return written


def save_table(table: Table, stem: Path) -> list[Path]:
    """stem.csv, stem.tex and stem.md."""
    texts = {".csv": table.csv(), ".tex": table.latex(), ".md": table.markdown() + "\n"}
    files = [stem.with_name(stem.name + ending) for ending in texts]
    for file, text in zip(files, texts.values(), strict=True):
        write_text(file, text)
    return files
