"""Writes a page about runs, with its figures and tables as files beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sparsefw.cli.output import Outcome, say
from sparsefw.report import read_runs, runs_table, write_files, write_page


def write_report(runs: Sequence[Path], page: Path) -> Outcome:
    """Write the page and its files; say which runs are damaged, and what of the others is missing."""
    found, damaged = read_runs(runs)
    if not found:
        raise ValueError(f"no run can be read; {damaged[0].folder}: {damaged[0].reason}")
    write_page(page, found, damaged)
    files = page.with_name(f"{page.stem}_files")
    write_files(files, found)
    for one in damaged:
        say(f"{one.folder}: {one.reason}")
    for run in found:
        if run.notes:
            say(f"{run.folder}: {'; '.join(run.notes)}")
    record = {
        "page": page,
        "files": files,
        "runs": [run.folder for run in found],
        "damaged": {str(one.folder): one.reason for one in damaged},
    }
    return Outcome(record, f"{runs_table(found).text()}\n{page}, {files}")
