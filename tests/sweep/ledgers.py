"""Ledgers in a file of their own, and a process that does jobs of one."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path

import optuna
from optuna.distributions import BaseDistribution, FloatDistribution

from sparsefw.sweep.ledger import Ledger
from sparsefw.sweep.locks import working
from sparsefw.sweep.storage import open_storage

SPACE = {"x": FloatDistribution(0.0, 1.0)}


def ledger_in(
    folder: Path, grace: float = 60.0, budget: int | None = None, space: Mapping[str, BaseDistribution] = SPACE
) -> Ledger:
    storage = open_storage(f"sqlite:///{folder / 'ledger.db'}")
    study = optuna.create_study(study_name="s", storage=storage, direction="maximize", load_if_exists=True)
    return Ledger(study, storage, grace, space if budget else None, budget)


def do_all(folder: Path, jobs: int, budget: int | None) -> None:
    """Claim and finish until nothing is left; every job's value is the number in its name."""
    ledger = ledger_in(folder, 1.0, budget)
    with working(folder) as worker:
        while True:
            if budget is None:
                ledger.post({f"{number:04d}": {} for number in range(jobs)})
            ledger.bury()
            claim = ledger.claim(worker)
            if claim is None:
                found = ledger.jobs()
                if len(found) >= jobs and all(job.settled for job in found.values()):
                    return
                time.sleep(0.02)
                continue
            with claim.held(0.2, lambda: False):
                time.sleep(0.05)
                claim.done(float(claim.job.name), {"by": worker.name})


if __name__ == "__main__":
    do_all(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None)
