"""Reads the runs of a report. Runs that cannot be read are listed, not passed over."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from sparsefw import runfolder
from sparsefw.report.names import named
from sparsefw.report.records import Damaged, Run, run_of
from sparsefw.runfolder import RunFolderError, find_runs


def read_runs(folders: Iterable[Path | str]) -> tuple[list[Run], list[Damaged]]:
    """Read all runs in these folders.

    Args:
        folders: run folders, or folders that hold run folders at any depth.

    Returns:
        The runs, named so that no two have the same label, and the folders that cannot be read.
    """
    runs: list[Run] = []
    damaged: list[Damaged] = []
    paths = [path for folder in folders for path in find_runs(Path(folder))]
    for path in dict.fromkeys(paths):
        try:
            runs.append(read_run(path))
        except RunFolderError as error:
            damaged.append(Damaged(error.folder, error.reason))
    return named(runs), damaged


def read_run(folder: Path | str) -> Run:
    """Read one run folder; RunFolderError if it cannot be read."""
    return run_of(runfolder.read_run(Path(folder)))
