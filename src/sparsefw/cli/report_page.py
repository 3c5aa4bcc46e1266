"""Writes a page about runs, and its figures and tables as files in a folder beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sparsefw.cli.output import Outcome
from sparsefw.report import read_runs, runs_table, write_files, write_page
from sparsefw.runfolder.files import is_declared, is_run_folder
from sparsefw.text import print_status


def _check_page(page: Path) -> None:
    """Raise ValueError where a page would take the place of a file of a run, or of what is no file."""
    for folder in page.resolve().parents[:2]:
        if is_run_folder(folder) and is_declared(page.resolve().relative_to(folder)):
            raise ValueError(f"--out {page} is a file of the run {folder}; choose another name")
    if page.exists() and not page.is_file():
        raise ValueError(f"--out {page} is a folder, a pipe or a device; choose another name")


def write_report(folders: Sequence[Path], page: Path) -> Outcome:
    """Write the page and its files; print which runs are damaged, and which parts of other runs are missing."""
    _check_page(page)
    runs, damaged = read_runs(folders)
    if not runs:
        raise ValueError(f"no run can be read; {damaged[0].folder}: {damaged[0].reason}")
    write_page(page, runs, damaged)
    files = page.with_name(f"{page.stem}_files")
    write_files(files, runs)
    for damaged_run in damaged:
        print_status(f"{damaged_run.folder}: {damaged_run.reason}")
    for run in runs:
        if run.problems:
            print_status(f"{run.folder}: {'; '.join(run.problems)}")
    record = {
        "page": page,
        "files": files,
        "runs": [run.folder for run in runs],
        "damaged": {str(run.folder): run.reason for run in damaged},
    }
    return Outcome(record, f"{runs_table(runs).text()}\n{page}, {files}")
