"""Exports a report: every figure as PNG and SVG, every table as CSV, LaTeX and Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sparsefw.plotting.figure_io import save_figure
from sparsefw.report.contents import Contents, contents_of
from sparsefw.report.records import ReportError, Run
from sparsefw.report.sections import sections_of
from sparsefw.report.sections.section import SectionSubject
from sparsefw.report.tables import Table, save_table


def write_files(folder: Path, runs: Sequence[Run]) -> list[Path]:
    """Write all tables and figures of these runs; if there are several tasks, those of each into a folder of its own."""
    contents = contents_of(runs)
    try:
        return _write_sections(folder, contents)
    except OSError as error:
        raise ReportError(f"cannot write {error.filename or folder}: {error.strerror}") from error


def _write_sections(folder: Path, contents: Contents) -> list[Path]:
    """Write the files about all runs, then those of each task."""
    written = []
    for section, subject in sorted(sections_of(contents), key=lambda pair: _task_number(pair[1])):
        task_folder = folder if subject.task is None else folder / subject.task.folder
        for stem, content in section.files(subject):
            path = task_folder / stem
            written += save_table(content, path) if isinstance(content, Table) else save_figure(content, path)
    return written


def _task_number(subject: SectionSubject) -> int:
    return 0 if subject.task is None else subject.task.number
