"""Runs a sweep: starts worker processes, replaces those that die, logs progress, and stops the workers when asked to."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from sparsefw.atomic_io import write_json
from sparsefw.config_base import ConfigError
from sparsefw.errors import Interrupted
from sparsefw.sweep.files import RESULTS_FILE
from sparsefw.sweep.processes import stop_signals_collected, thread_variables
from sparsefw.sweep.progress import ProgressReporter
from sparsefw.sweep.results import sweep_results
from sparsefw.sweep.sweep import Sweep
from sparsefw.sweep.sweep_plan import SweepPlan
from sparsefw.sweep.worker import BAD_INPUT, DISK_FAILED, WORKER_VARIABLE, data_fingerprint

POLL_SECONDS = 0.5
SECONDS_BETWEEN_STOP_SIGNALS = 20.0  # a worker may need some to write a checkpoint
# A worker that ends within this many seconds, this many times in a row, will not do better.
SHORT_LIFE_SECONDS = 20.0
MAX_SHORT_LIVES = 10


def begin_sweep(plan: SweepPlan, url: str, folder: Path, data: Path | None, trust: bool = False) -> Sweep:
    """Begin a sweep, or continue it if it was begun before; refuse if its data set is not on this machine, or has changed."""
    fingerprint = data_fingerprint(plan, data)
    sweep = Sweep.begin(plan, url, folder, trust)
    sweep.check_data(fingerprint)
    return sweep


def run_sweep(
    sweep: Sweep, url: str, workers: int, data: Path | None = None, log: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Run workers until the sweep is finished, on this machine or elsewhere.

    Args:
        url: the storage of the sweep
        workers: how many processes to run
        data: the folder of the data set
        log: called with a line for everything that happens

    Returns:
        The results, which are also written to results.json.
    """
    if workers < 1:
        raise ConfigError(f"workers={workers}: at least one")
    reporter = ProgressReporter(sweep, log)
    processes: list[WorkerProcess] = []
    with stop_signals_collected() as signals:
        try:
            while not sweep.finished():
                if not processes:
                    processes = [WorkerProcess(sweep, url, data, number, workers) for number in range(workers)]
                reporter.report_finished_jobs()
                if signals:
                    raise Interrupted(f"{signals[0]}: stopped; the same command continues from here")
                for process in processes:
                    process.restart_if_dead(log)
                time.sleep(POLL_SECONDS)
        finally:
            _stop_workers(processes, signals)
            reporter.report_finished_jobs()
            results = sweep_results(sweep)
            write_json(sweep.folder / RESULTS_FILE, results)
    return results


class WorkerProcess:
    """A worker process, which is started again when it dies."""

    def __init__(self, sweep: Sweep, url: str, data: Path | None, number: int, workers: int) -> None:
        self._sweep = sweep
        self._assignment = {
            "url": url,
            "name": sweep.plan.name,
            "folder": str(sweep.folder.resolve()),
            "data": None if data is None else str(data.resolve()),
            "parent": os.getpid(),
            "trust": sweep.trust,
        }
        self._gpu = number % torch.cuda.device_count() if torch.cuda.device_count() else None
        self._thread_variables = thread_variables(workers)
        self._short_lives = 0
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        self._started = time.monotonic()
        environment = {**self._thread_variables, **os.environ, WORKER_VARIABLE: json.dumps(self._assignment)}
        if self._gpu is not None:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            environment["CUDA_VISIBLE_DEVICES"] = visible.split(",")[self._gpu] if visible else str(self._gpu)
        # A new session keeps a Ctrl-C of the terminal from the workers: this process stops them.
        # -P keeps Python from importing what happens to be in the current folder.
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "sparsefw.sweep.worker"], env=environment, start_new_session=True
        )

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def restart_if_dead(self, log: Callable[[str], None]) -> None:
        """Start the worker again if it died; raise if it cannot work, or died too often right after its start."""
        code = self.process.poll()
        if code is None or (code == 0 and self._sweep.finished()):
            return
        if code == BAD_INPUT:
            raise ConfigError("no worker can start here; the line above says why")
        if code == DISK_FAILED:  # another worker would fill what is left
            raise OSError("a worker cannot write, as the line above says; mend that, and the same command continues")
        short = time.monotonic() - self._started < SHORT_LIFE_SECONDS
        self._short_lives = self._short_lives + 1 if short else 0
        cause = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        if self._short_lives >= MAX_SHORT_LIVES:
            raise RuntimeError(f"workers end right after their start ({cause}); see their messages above")
        log(f"a worker died ({cause}): starting another")
        self.process = self._start()


def _stop_workers(processes: Sequence[WorkerProcess], signals: Sequence[str]) -> None:
    """Ask all workers to stop, which makes them write checkpoints, and wait; after a second signal, kill them."""
    last_request = -math.inf
    while alive := [process for process in processes if process.alive]:
        # Ask again from time to time: a worker that was losing its job may have taken the first signal for that.
        if time.monotonic() - last_request > SECONDS_BETWEEN_STOP_SIGNALS:
            last_request = time.monotonic()
            for process in alive:
                process.process.send_signal(signal.SIGTERM)
        if len(signals) > 1:
            for process in alive:
                process.process.kill()
        time.sleep(0.05)
