"""A worker: takes a job, trains, measures, writes down what it found; until the sweep is over."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import signal
import statistics
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch

from sparsefw.atomic_io import strict, write_text
from sparsefw.compression import curve
from sparsefw.data.loaders import open_data
from sparsefw.errors import Interrupted
from sparsefw.sweep.ledger import Claim
from sparsefw.sweep.locks import Worker, working
from sparsefw.sweep.storage import AWAY, StorageAway
from sparsefw.sweep.sweep import Sweep, final_of
from sparsefw.sweep.sweep_plan import FIRST, FORM, SweepPlan
from sparsefw.text import first_line
from sparsefw.train import fit
from sparsefw.train.checkpoint import newest_step
from sparsefw.train.config import RunConfig
from sparsefw.train.evaluate_run import Study
from sparsefw.train.folder import FolderBusy, RunFolder
from sparsefw.train.loop import Training, evaluate, evaluated_model

VARIABLE = "SPARSEFW_SWEEP_WORKER"  # what to do, as JSON: not on the command line, where others could read a password
POLL = 1.0  # seconds between looks at the ledger while others work
RUNGS = (0.25, 0.5, 0.75)  # of the training, where the hopeless are stopped
BAD_INPUT = 2


class Task(NamedTuple):
    row: str
    claim: Claim
    final: bool


class Hopeless(Exception):  # noqa: N818  (nothing went wrong)
    """A training that the pruner stops."""

    def __init__(self, value: float) -> None:
        super().__init__("hopeless")
        self.value = value


def work(sweep: Sweep, data: Path | None, parent: int) -> None:
    """Until nothing is left to do. Jobs of workers that died are taken over. parent: the process without which this one ends."""
    with working(sweep.folder) as worker, asked_to_stop():
        while not sweep.finished():
            task = next_task(sweep, worker)
            if task is None:
                _alone(parent)
                time.sleep(POLL)
                continue
            try:
                with task.claim.held(sweep.plan.grace / 6, lambda: os.getppid() != parent):
                    do(sweep, task, data)
            except Interrupted:
                if not task.claim.lost:
                    task.claim.release()
                    raise
                say(f"{task.row} {task.claim.job.name}: another worker has taken it over")


def _alone(parent: int) -> None:
    if os.getppid() != parent:
        raise Interrupted("the process that started this worker is gone")


@contextlib.contextmanager
def asked_to_stop() -> Iterator[None]:
    """Signals end the work cleanly; while training, they first write a checkpoint."""

    def stop(which: int, frame: FrameType | None) -> None:
        raise Interrupted(signal.Signals(which).name)

    before = {which: signal.signal(which, stop) for which in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)


def next_task(sweep: Sweep, worker: Worker) -> Task | None:
    """Configurations first, row by row; then the seeds of what was chosen."""
    for row in sweep.plan.rows:
        ledger = sweep.trials(row)
        ledger.post(sweep.plan.jobs(row))
        for job in ledger.bury():
            say(f"{row} {job.name}: its worker died, {job.error or 'another goes on with it'}")
        if (claim := ledger.claim(worker)) is not None:
            return Task(row, claim, final=False)
    for row in sweep.plan.rows:
        ledger = sweep.finals(row)
        ledger.post(sweep.final_jobs(row))
        ledger.bury()
        if (claim := ledger.claim(worker)) is not None:
            return Task(row, claim, final=True)
    return None


def do(sweep: Sweep, task: Task, data: Path | None) -> None:
    """Train and measure; what goes wrong is written down, and does not stop the others."""
    claim, folder = task.claim, _folder(sweep, task)
    claim.begin(folder, progress(folder))
    try:
        folder = _when_free(folder, sweep.plan.grace, task)
        RunFolder(folder).forget_result_without_model()
        (_final if task.final else _trial)(sweep, task, folder, data)
    except Interrupted:
        raise
    except Hopeless as stopped:
        if claim.pruned(stopped.value):
            RunFolder(folder).forget_checkpoints()
    except Exception as error:
        if is_the_machines_fault(error):
            claim.release()  # whoever takes the job next may be luckier, and this process is not to be trusted
            raise
        if claim.failed(f"{type(error).__name__}: {first_line(error)}") and (folder / "config.yaml").exists():
            write_text(folder / "error.txt", traceback.format_exc())
            RunFolder(folder).forget_checkpoints()
    if not task.final:
        sweep.forget(task.row)


def is_the_machines_fault(error: BaseException) -> bool:
    """A full or broken disk, no memory, a GPU that has failed, a storage that stays away: no configuration is to blame."""
    machine = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
    if isinstance(error, OSError):
        return error.errno in machine
    return isinstance(error, (MemoryError, torch.AcceleratorError, *AWAY))


def _when_free(folder: Path, grace: float, task: Task) -> Path:
    """The folder once the worker that lost this job has noticed; another one, if it never does."""
    pause, end = POLL, time.monotonic() + 5 * grace
    while time.monotonic() < end:
        with contextlib.suppress(FolderBusy), RunFolder(folder).locked():
            return folder
        time.sleep(pause)
        pause = min(2 * pause, 30.0)
    say(
        f"{task.row} {task.claim.job.name}: {folder} stays locked by a process that does not end: starting again beside it"
    )
    return folder.with_name(f"{folder.name}-again")


def _folder(sweep: Sweep, task: Task) -> Path:
    """Where the job was begun, if that can be reached; else a folder of this machine."""
    job = task.claim.job
    begun, here = job.begun.get("folder"), sweep.place(task.row, job.name)
    there = sweep.reachable(begun)
    if begun is not None and there is None and begun != str(here.resolve()):
        where = f"on {job.begun['host']} in {begun}"
        say(f"{task.row} {job.name}: was begun {where}, which cannot be reached from here: starting again")
    return there or here


def progress(folder: Path) -> str:
    """How far a run has come."""
    return "the end of training" if RunFolder(folder).result else f"step {newest_step(folder / 'checkpoints')}"


def _trial(sweep: Sweep, task: Task, folder: Path, data: Path | None) -> None:
    job = task.claim.job
    config = sweep.config(task.row, job)
    judge = Judge(task.claim, config) if sweep.plan.prune else None
    (folder / "error.txt").unlink(missing_ok=True)  # of an attempt before
    result = fit(config, folder, data, quiet=True, judge=judge)
    study = Study.open(folder, data, config.engine.device, trust=True)
    found = study.curve(None, None, FORM, "validation", refit=False, progress=False)
    plain = [point.plain for point in found.points]
    about = {"ratios": [point.ratio for point in found.points], "dense": found.dense, "plain": plain}
    about |= {key: result[key] for key in ("metric", "seconds", "images_per_second")}
    task.claim.done(mean(plain), {**strict(about), "folder": str(folder.resolve())})


def _final(sweep: Sweep, task: Task, folder: Path, data: Path | None) -> None:
    """The test figures of the chosen configuration on one seed; on the first one, of the network that is there."""
    name, seed = final_of(task.claim.job.name)
    chosen = sweep.trials(task.row).jobs()[name]
    config = sweep.config(task.row, chosen, seed)
    trained = sweep.reachable(chosen.begun.get("folder"))
    if seed == FIRST and trained is not None and (trained / "model.safetensors").exists():
        folder = trained
    result = fit(config, folder, data, quiet=True)
    study = Study.open(folder, data, config.engine.device, trust=True)
    masked = study.curve(None, None, FORM, "test", refit=False, progress=False)
    removed = study.curve(None, None, "removed", "test", progress=False)
    about: dict[str, Any] = {"seed": seed, "ratios": [point.ratio for point in masked.points], "dense": masked.dense}
    about["plain"] = [point.plain for point in masked.points]
    about["removed_refit"] = [point.refit for point in removed.points]
    about["parameters"] = [point.costs.parameters for point in removed.points if point.costs is not None]
    about |= {key: result[key] for key in ("metric", "seconds", "images_per_second")}
    task.claim.done(mean(about["plain"]), {**strict(about), "folder": str(folder.resolve())})


def mean(values: list[float]) -> float:
    """Over the ratios; where so much is gone that nothing can be computed, nothing is right."""
    return statistics.fmean(0.0 if math.isnan(value) else value for value in values)


class Judge:
    """Called after every epoch: at a quarter, a half and three quarters of the training the network is compressed as it will be
    in the end, and a pruner compares it with what the others had at that time."""

    def __init__(self, claim: Claim, config: RunConfig) -> None:
        self._claim, self._config = claim, config
        self._rungs = [max(1, round(part * config.train.epochs)) for part in RUNGS]

    def __call__(self, training: Training) -> None:
        if training.epoch not in self._rungs or training.step >= training.steps:
            return
        part = training.data.validation
        assert part is not None  # the plan has seen to it
        found = curve(
            evaluated_model(training),
            self._config.curve_kind,
            list(self._config.curve.at),
            form=FORM,
            calibration=training.data.train.sample(self._config.curve.calibration),
            evaluate=lambda model: evaluate(model, part, training.task, training.engine)[training.task.metric],
            refit=False,
            progress=False,
        )
        value = mean([point.plain for point in found.points])
        if self._claim.is_hopeless(value, training.epoch):
            raise Hopeless(value)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def check_data(plan: SweepPlan, data: Path | None) -> None:
    """Before any job is taken: where the data are not here, no job can be done here, and none is to blame."""
    config = plan.example(plan.rows[0])
    open_data(config.data, data, device=torch.device("cpu"), seed=config.seed)


def main() -> None:
    """What `sparsefw sweep` starts."""
    asked = json.loads(os.environ[VARIABLE])
    data = None if asked["data"] is None else Path(asked["data"])
    try:
        sweep = Sweep.join(asked["url"], asked["name"], Path(asked["folder"]))
        check_data(sweep.plan, data)
    except StorageAway as error:
        sys.exit(f"error: {error}")  # another worker may be luckier
    except ValueError as error:
        say(f"error: {error}")
        sys.exit(BAD_INPUT)
    try:
        work(sweep, data, asked["parent"])
    except (Interrupted, KeyboardInterrupt):
        sys.exit(130)


if __name__ == "__main__":
    main()
