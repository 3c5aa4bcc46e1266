"""Small sweeps, as a user starts them, and sweeps with made-up figures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from sparsefw.sweep.grids import load_grid
from sparsefw.sweep.jobs import TrainingProgress
from sparsefw.sweep.locks import registered_worker
from sparsefw.sweep.sweep import Sweep
from sparsefw.sweep.sweep_plan import SweepPlan
from train.harness import ended, start

SWEEP_SECONDS = 600  # until a sweep that hangs is given up
GRID = """
recipe: digits-resnet
kind: filters
at: [0.5, 0.8]
train: {epochs: 2}
methods:
  SGD: {method: {name: sgd}, train: {weight_decay: [1e-4, 5e-3]}}
  SparseFW: {method: {name: sparsefw, kind: filters, k: [0.2, 0.3]}}
"""


def write_grid(folder: Path, text: str = GRID, name: str = "tiny") -> Path:
    file = folder / f"{name}.yaml"
    file.write_text(text)
    return file


def begin_sweep(folder: Path, text: str = GRID, **options) -> Sweep:
    """Begin a sweep whose jobs the test finishes itself."""
    folder.mkdir(exist_ok=True)
    plan = SweepPlan(name="tiny", grid=load_grid(str(write_grid(folder, text))), **options)
    return Sweep.begin(plan, f"sqlite:///{folder / 'ledger.db'}", folder / "sweep")


def finish_trials(sweep: Sweep, row: str, values: dict[str, float | Exception]) -> None:
    """Finish the configurations of a row with made-up validation figures, or failures."""
    ledger = sweep.configuration_ledger(row)
    ledger.post(sweep.plan.jobs(row))
    with registered_worker(sweep.folder) as worker:
        while (claim := ledger.claim(worker)) is not None:
            value = values[claim.job.name]
            folder = sweep.job_folder(row, claim.job.name)
            claim.record_start(folder, TrainingProgress(0))
            if isinstance(value, Exception):
                claim.failed(str(value))
            else:
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "model.safetensors").write_text("weights")
                claim.done(value, {"metric": "accuracy", "dense": 99.0, "plain": [value, value], "folder": str(folder)})


def finish_finals(sweep: Sweep, row: str, dense: dict[int, float], plain: dict[int, list[float]]) -> None:
    """Finish the seeds of a row with made-up test figures."""
    ledger = sweep.seed_ledger(row)
    ledger.post(sweep.seed_jobs(row))
    with registered_worker(sweep.folder) as worker:
        while (claim := ledger.claim(worker)) is not None:
            seed = claim.job.params["seed"]
            figures = {"seed": seed, "metric": "accuracy", "dense": dense[seed], "plain": plain[seed]}
            figures |= {"removed_refit": plain[seed], "parameters": [10, 5], "images_per_second": 100.0 + seed}
            claim.done(1.0, {**figures, "folder": "x"})


def command(grid: Path | str | None, out: Path, *more: str) -> list[str]:
    words = ["-m", "sparsefw", "sweep", *([str(grid)] if grid else []), "--out", str(out), "--json"]
    if grid:
        words += ["--set", "model.arguments.width=4", "--set", "engine.checkpoint_seconds=0", "--grace", "5"]
    return [*words, *more]


def run_to_end(words: list[str], code: int = 0, **environment: str) -> tuple[dict, str]:
    """Run a command; return the JSON that it printed, and its messages."""
    out, err = ended(start(words, **environment), code, SWEEP_SECONDS)
    return (json.loads(out) if out.strip() else {}), err


def workers_of(process: subprocess.Popen) -> list[int]:
    """Return the ids of the living processes that a process has started."""
    workers = []
    for folder in Path("/proc").iterdir():
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            continue
        if folder.name.isdigit() and int(fields[1]) == process.pid and fields[0] != "Z":
            workers.append(int(folder.name))
    return sorted(workers)


def kill_workers(processes: Sequence[subprocess.Popen], times: int, pause, chance) -> int:
    """Kill random workers of a sweep with SIGKILL, up to `times`, while it runs; return how many."""
    killed = 0
    while any(process.poll() is None for process in processes) and killed < times:
        time.sleep(pause())
        if alive := [pid for process in processes if process.poll() is None for pid in workers_of(process)]:
            try:
                os.kill(chance.choice(alive), signal.SIGKILL)
            except ProcessLookupError:
                continue
            killed += 1
    return killed
