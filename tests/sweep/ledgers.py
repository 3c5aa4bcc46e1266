"""Ledgers in a SQLite file, and a process that runs the jobs of one."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path

import optuna
from optuna.distributions import BaseDistribution, FloatDistribution

from sparsefw.sweep.ledger import Ledger
from sparsefw.sweep.locks import registered_worker
from sparsefw.sweep.storage import open_storage

SPACE = {"x": FloatDistribution(0.0, 1.0)}


def ledger_in(
    folder: Path, grace: float = 60.0, budget: int | None = None, space: Mapping[str, BaseDistribution] = SPACE
) -> Ledger:
    storage = open_storage(f"sqlite:///{folder / 'ledger.db'}")
    study = optuna.create_study(study_name="s", storage=storage, direction="maximize", load_if_exists=True)
    return Ledger(study, storage, folder, grace, space if budget else None, budget)


def finish_all_jobs(folder: Path, count: int, budget: int | None) -> None:
    """Claim and finish jobs until none is left; the value of a job is the number in its name."""
    ledger = ledger_in(folder, 1.0, budget)
    with registered_worker(folder) as worker:
        while True:
            if budget is None:
                ledger.post({f"{number:04d}": {} for number in range(count)})
            ledger.recover_jobs()
            claim = ledger.claim(worker)
            if claim is None:
                jobs = ledger.jobs()
                if len(jobs) >= count and all(job.finished for job in jobs.values()):
                    return
                time.sleep(0.02)
                continue
            with claim.heartbeat(0.2, lambda: False):
                time.sleep(0.05)
                claim.done(float(claim.job.name), {"by": worker.name})


if __name__ == "__main__":
    finish_all_jobs(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None)
