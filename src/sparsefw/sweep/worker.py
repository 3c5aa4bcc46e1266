"""A worker process: claims jobs, trains and measures them, and records the results, until the sweep is finished."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import statistics
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch

from sparsefw.atomic_io import json_ready
from sparsefw.compression import Curve, curve
from sparsefw.data.fingerprint import Fingerprint
from sparsefw.data.loaders import open_data
from sparsefw.errors import Interrupted, disk_error
from sparsefw.own_code import search_current_folder
from sparsefw.runfolder import RunPaths, RunWriter
from sparsefw.runfolder.schema import SweepJob
from sparsefw.sweep.jobs import TrainingProgress
from sparsefw.sweep.ledger import Claim
from sparsefw.sweep.locks import Worker, registered_worker
from sparsefw.sweep.processes import stop_signals_handled
from sparsefw.sweep.storage import UNREACHABLE, StorageUnreachable
from sparsefw.sweep.sweep import CONFIGURATION, SEED, Sweep
from sparsefw.sweep.sweep_plan import CURVE_FORM, SELECTION_SEED, SweepPlan
from sparsefw.text import first_line, print_status
from sparsefw.train import fit
from sparsefw.train.checkpoint import newest_step
from sparsefw.train.config import RunConfig
from sparsefw.train.evaluate_run import TrainedRun
from sparsefw.train.folder import FolderBusy, RunFolder
from sparsefw.train.loop import Training, evaluate, evaluated_model

# The assignment of a worker, as JSON. Not on the command line, where other users could read the password of the storage.
WORKER_VARIABLE = "SPARSEFW_SWEEP_WORKER"
POLL_SECONDS = 1.0  # between looks at the ledger while other workers run the last jobs
RUNGS = (0.25, 0.5, 0.75)  # the parts of a training after which the pruner may stop it
# Exit codes.
BAD_INPUT = 2
DISK_FAILED = 3


class Task(NamedTuple):
    """A claimed job; final: whether it is a seed of the row's chosen configuration."""

    row: str
    claim: Claim
    final: bool

    def __str__(self) -> str:
        return f"{self.row} {self.claim.job.name}"


class Pruned(Exception):  # noqa: N818  (nothing went wrong)
    """The pruner stopped a training; value: the figure of its network at that time."""

    def __init__(self, value: float) -> None:
        super().__init__("pruned")
        self.value = value


def work(sweep: Sweep, data: Path | None, parent: int) -> None:
    """Run jobs, also those of workers that died, until the sweep is finished or the process `parent` is gone."""
    with registered_worker(sweep.folder) as worker, stop_signals_handled(_raise_interrupted):
        while not sweep.finished():
            task = next_task(sweep, worker)
            if task is None:
                if os.getppid() != parent:
                    raise Interrupted("the process that started this worker is gone")
                time.sleep(POLL_SECONDS)
                continue
            try:
                with task.claim.heartbeat(sweep.plan.grace / 6, lambda: os.getppid() != parent):
                    run_task(sweep, task, data)
            except Interrupted:
                if not task.claim.lost:
                    task.claim.release()
                    raise
                print_status(f"{task}: another worker has taken the job over")


def _raise_interrupted(signal_name: str) -> NoReturn:
    """Stop the work; a training first writes a checkpoint."""
    raise Interrupted(signal_name)


def next_task(sweep: Sweep, worker: Worker) -> Task | None:
    """Claim the next job: a configuration, row by row; then a seed of a chosen configuration."""
    for row in sweep.plan.rows:
        ledger = sweep.configuration_ledger(row)
        ledger.post(sweep.plan.jobs(row))
        for job in ledger.recover_jobs():
            print_status(f"{row} {job.name}: its worker died; {job.error or 'another one continues'}")
        if (claim := ledger.claim(worker)) is not None:
            return Task(row, claim, final=False)
    for row in sweep.plan.rows:
        ledger = sweep.seed_ledger(row)
        ledger.post(sweep.seed_jobs(row))
        ledger.recover_jobs()
        if (claim := ledger.claim(worker)) is not None:
            return Task(row, claim, final=True)
    return None


def run_task(sweep: Sweep, task: Task, data: Path | None) -> None:
    """Train and measure a job, and record its result or its failure; a failure does not stop the other jobs."""
    claim = task.claim
    folder = _folder(sweep, task)
    claim.record_start(folder, training_progress(folder))
    try:
        folder = _wait_for_lock(folder, sweep.plan.grace, task)
        RunFolder(folder).forget_result_without_model()
        if task.final:
            _run_seed(sweep, task, folder, data)
        else:
            _run_configuration(sweep, task, folder, data)
    except Interrupted:
        raise
    except Pruned as pruned:
        if claim.pruned(pruned.value):
            RunFolder(folder).forget_checkpoints()
    except Exception as error:
        if is_machine_failure(error):
            claim.release()  # for a worker on a sound machine: this process cannot be trusted any more
            raise
        begun = RunPaths(folder).config.exists()
        if claim.failed(f"{type(error).__name__}: {first_line(error)}") and begun:
            RunWriter(folder).error(traceback.format_exc())
            RunFolder(folder).forget_checkpoints()
    if not task.final:
        sweep.remove_unneeded_models(task.row)


def is_machine_failure(error: BaseException) -> bool:
    """Return whether the machine, rather than the configuration, caused an error.

    Such as a full or broken disk, too little memory, a failed GPU, or a storage that cannot be reached.
    """
    if disk_error(error) is not None:
        return True
    if isinstance(error, OSError):
        return error.errno in (errno.ENOMEM, errno.EMFILE, errno.ENFILE)
    return isinstance(error, (MemoryError, torch.AcceleratorError, *UNREACHABLE))


def _wait_for_lock(folder: Path, grace: float, task: Task) -> Path:
    """Return the folder as soon as the worker that lost this job unlocks it; another folder if it never does."""
    pause = POLL_SECONDS
    deadline = time.monotonic() + 5 * grace
    while time.monotonic() < deadline:
        with contextlib.suppress(FolderBusy), RunFolder(folder).locked():
            return folder
        time.sleep(pause)
        pause = min(2 * pause, 30.0)
    other = folder.with_name(f"{folder.name}-again")
    print_status(f"{task}: {folder} stays locked by a process that does not end; starting again in {other}")
    return other


def _folder(sweep: Sweep, task: Task) -> Path:
    """Return the folder in which the job was started before, if it is visible from here; else a folder of this machine."""
    job = task.claim.job
    started = sweep.started_folder(task.row, job)
    if started is not None:
        return started
    folder = sweep.job_folder(task.row, job.name)
    if job.start is not None and job.start.folder != str(folder.resolve()):
        place = f"on {job.start.host} in {job.start.folder}"
        print_status(f"{task}: was started {place}, which cannot be reached from here: starting again")
    return folder


def training_progress(folder: Path) -> TrainingProgress:
    """Return how far the run in a folder has come."""
    trained = bool(RunFolder(folder).result)
    return TrainingProgress(0 if trained else newest_step(RunPaths(folder).checkpoints), trained)


def _run_configuration(sweep: Sweep, task: Task, folder: Path, data: Path | None) -> None:
    """Train a configuration, and record its figures on validation images."""
    job = task.claim.job
    config = sweep.config(task.row, job)
    judge = PruningCheck(task.claim, config) if sweep.plan.prune else None
    RunWriter(folder).forget_error()  # of an earlier attempt
    facts = SweepJob(sweep.plan.name, task.row, job.name, final=False)
    result = fit(config, folder, data, trust=sweep.trust, quiet=True, judge=judge, job=facts)
    trained = TrainedRun.open(folder, data, config.engine.device, trust=sweep.trust)
    masked = trained.curve(None, None, CURVE_FORM, "validation", refit=False, progress=False)
    _record_result(task, folder, result, _masked_figures(masked))


def _run_seed(sweep: Sweep, task: Task, folder: Path, data: Path | None) -> None:
    """Record the test figures of the chosen configuration with one seed; the network of the first seed is trained already."""
    seed = int(task.claim.job.params[SEED])
    chosen = sweep.configuration_ledger(task.row).jobs()[task.claim.job.params[CONFIGURATION]]
    config = sweep.config(task.row, chosen, seed)
    trained_folder = sweep.started_folder(task.row, chosen)
    if seed == SELECTION_SEED and trained_folder is not None and RunPaths(trained_folder).model.exists():
        folder = trained_folder
    facts = SweepJob(sweep.plan.name, task.row, chosen.name, final=True)
    result = fit(config, folder, data, trust=sweep.trust, quiet=True, job=facts)
    trained = TrainedRun.open(folder, data, config.engine.device, trust=sweep.trust)
    masked = trained.curve(None, None, CURVE_FORM, "test", refit=False, progress=False)
    removed = trained.curve(None, None, "removed", "test", progress=False)
    figures: dict[str, Any] = {"seed": seed, **_masked_figures(masked)}
    figures["removed_refit"] = [point.refit for point in removed.points]
    figures["parameters"] = [point.costs.parameters for point in removed.points if point.costs is not None]
    _record_result(task, folder, result, figures)


def _masked_figures(masked: Curve) -> dict[str, Any]:
    return {
        "ratios": [point.ratio for point in masked.points],
        "dense": masked.dense,
        "plain": [point.plain for point in masked.points],
    }


def _record_result(task: Task, folder: Path, result: Mapping[str, Any], figures: Mapping[str, Any]) -> None:
    """Finish the job with the figures of its curves and of its training."""
    training = {key: result[key] for key in ("metric", "seconds", "images_per_second")}
    record = {**json_ready({**figures, **training}), "folder": str(folder.resolve())}
    task.claim.done(mean_over_ratios(figures["plain"]), record)


def mean_over_ratios(values: Sequence[float]) -> float:
    """Return the mean; a nan, from a network so small that its outputs are not finite, counts as 0.

    >>> mean_over_ratios([90.0, math.nan])
    45.0
    """
    return statistics.fmean(0.0 if math.isnan(value) else value for value in values)


class PruningCheck:
    """Called after every epoch; raises `Pruned` if the study's pruner stops the training.

    After the epochs of RUNGS the network is compressed as it will be in the end, and the pruner compares the result with that
    of the other trainings at the same epoch.
    """

    def __init__(self, claim: Claim, config: RunConfig) -> None:
        self._claim = claim
        self._config = config
        self._epochs = [max(1, round(part * config.train.epochs)) for part in RUNGS]

    def __call__(self, training: Training) -> None:
        if training.epoch not in self._epochs or training.step >= training.steps:
            return
        images = training.data.validation
        assert images is not None  # SweepPlan refuses recipes without validation images
        masked = curve(
            evaluated_model(training),
            self._config.curve_kind,
            list(self._config.curve.at),
            form=CURVE_FORM,
            calibration=training.data.train.sample(self._config.curve.calibration),
            evaluate=lambda model: evaluate(model, images, training.task, training.engine)[training.task.metric],
            refit=False,
            progress=False,
        )
        value = mean_over_ratios([point.plain for point in masked.points])
        if self._claim.should_prune(value, training.epoch):
            raise Pruned(value)


def data_fingerprint(plan: SweepPlan, data: Path | None) -> Fingerprint:
    """Open the data set of a sweep, before a job is claimed that would fail because it is not on this machine."""
    config = plan.example(plan.rows[0])
    return open_data(config.data, data, device=torch.device("cpu"), seed=config.seed).fingerprint


def main() -> None:
    """Run a worker that `sparsefw sweep` started, as WORKER_VARIABLE says."""
    assignment = json.loads(os.environ[WORKER_VARIABLE])
    data = None if assignment["data"] is None else Path(assignment["data"])
    try:
        if assignment["trust"]:
            search_current_folder()
        sweep = Sweep.join(assignment["url"], assignment["name"], Path(assignment["folder"]), assignment["trust"])
        sweep.check_data(data_fingerprint(sweep.plan, data))
    except StorageUnreachable as error:
        sys.exit(f"error: {error}")  # with exit code 1: the supervisor starts another worker
    except ValueError as error:
        print_status(f"error: {error}")
        sys.exit(BAD_INPUT)
    try:
        work(sweep, data, assignment["parent"])
    except (Interrupted, KeyboardInterrupt):
        sys.exit(130)
    except Exception as error:
        failed = disk_error(error)
        if failed is None:
            raise
        print_status(f"failed: {failed.filename}: {failed.strerror}")
        sys.exit(DISK_FAILED)


if __name__ == "__main__":
    main()
