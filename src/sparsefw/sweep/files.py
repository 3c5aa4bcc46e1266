"""The folder of a sweep: the names of its files, and where its runs are."""

from __future__ import annotations

from pathlib import Path

IDENTITY_FILE = "sweep.json"
LEDGER_FILE = "ledger.db"
RESULTS_FILE = "results.json"
WORKERS_FOLDER = "workers"  # the lock files of the workers


def run_folder(sweep_folder: Path, row_folder: str, job: str) -> Path:
    """Return the folder of the run of a job."""
    return sweep_folder / row_folder / job


def sweep_folder_of(run_folder: Path) -> Path:
    """Return the folder of the sweep that a run belongs to.

    >>> str(sweep_folder_of(run_folder(Path("runs/sweep"), "SGD", "0003")))
    'runs/sweep'
    """
    return run_folder.parent.parent
