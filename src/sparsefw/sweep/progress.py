"""The progress of a sweep: how many of its jobs are finished, and a line for each job that finishes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from sparsefw.sweep.jobs import Job, JobState
from sparsefw.sweep.sweep import Sweep
from sparsefw.sweep.sweep_plan import settings_text


class JobCount(NamedTuple):
    """How many jobs of a sweep are finished, and how many there will be, as far as is known."""

    finished: int
    total: int


def count_jobs(sweep: Sweep) -> JobCount:
    """Count the jobs of a sweep; a row whose configuration is not chosen yet counts with all of its seeds."""
    finished = 0
    total = 0
    for row in sweep.plan.rows:
        configurations = sweep.configuration_ledger(row).jobs()
        seeds = sweep.seed_ledger(row).jobs()
        seed_names = sweep.seed_jobs(row)
        finished += sum(job.finished for job in configurations.values())
        finished += sum(name in seeds and seeds[name].finished for name in seed_names)
        total += sweep.plan.count(row) + (len(seed_names) or sweep.plan.seeds)
    return JobCount(finished, total)


class FinishedJob(NamedTuple):
    """A finished job of a row; final: whether it is a seed of the chosen configuration."""

    row: str
    job: Job
    final: bool


class ProgressReporter:
    """Logs a line for every job that finishes, whoever ran it."""

    def __init__(self, sweep: Sweep, log: Callable[[str], None]) -> None:
        self._sweep = sweep
        self._log = log
        self._reported = {(finished.row, finished.job.name) for finished in self._finished_jobs()}
        # Jobs that earlier processes finished say nothing about the speed of this one.
        self._finished_before = len(self._reported)
        self._started = time.monotonic()
        if self._reported:
            total = count_jobs(sweep).total
            log(f"{sweep.plan.name}: continuing; {len(self._reported)} of {total} jobs are already finished")

    def report_finished_jobs(self) -> None:
        """Log the jobs that finished since the last call."""
        for finished in self._finished_jobs():
            key = (finished.row, finished.job.name)
            if key not in self._reported:
                self._reported.add(key)
                self._log(f"[{self._position()}] {finished.row} {finished.job.name}: {self._describe(finished)}")

    def _finished_jobs(self) -> Iterator[FinishedJob]:
        for row in self._sweep.plan.rows:
            for ledger, final in ((self._sweep.configuration_ledger(row), False), (self._sweep.seed_ledger(row), True)):
                yield from (FinishedJob(row, job, final) for job in ledger.jobs().values() if job.finished)

    def _position(self) -> str:
        """Return such as "3/8, about 5 min left", estimated from the jobs that finished since this process started."""
        finished = len(self._reported)
        total = count_jobs(self._sweep).total
        if finished >= total:
            return f"{finished}/{total}"
        seconds_per_job = (time.monotonic() - self._started) / (finished - self._finished_before)
        return f"{finished}/{total}, about {duration_text(seconds_per_job * (total - finished))} left"

    def _describe(self, finished: FinishedJob) -> str:
        job = finished.job
        if job.state is JobState.FAILED:
            return f"failed: {job.error}"
        split = "test" if finished.final else "validation"
        text = f"{split} {job.result.get('metric', 'metric')} {job.value:.2f} on average over the ratios"
        if not finished.final:
            settings = settings_text(self._sweep.plan.varied_settings(finished.row, job.params))
            text = f"{settings}: {text}" if settings else text
        return f"{text}, pruned" if job.state is JobState.PRUNED else text


def duration_text(seconds: float) -> str:
    """Return a duration, rounded as an estimate should be.

    >>> duration_text(34.0), duration_text(290.0), duration_text(7800.0)
    ('30 s', '5 min', '2 h 10 min')
    """
    if seconds < 90:
        return f"{max(10, 10 * round(seconds / 10))} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
