"""Writes a page about runs, and its figures and tables as files in a folder beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sparsefw.cli.output import Outcome
from sparsefw.report import read_runs, runs_table, write_files, write_page
from sparsefw.text import print_status


def write_report(folders: Sequence[Path], page: Path) -> Outcome:
    """Write the page and its files; print which runs are damaged, and which parts of other runs are missing."""
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
