"""The ledger: an Optuna study from which any number of workers take jobs.

A job is a configuration to train, or one seed of the chosen configuration. A trial is one attempt at a job by one worker, the
trial's holder. Workers may be killed at any moment; no job is lost, and none is counted twice, because of these rules:

1. Claim. A worker takes a waiting trial with Optuna's `ask`. The database gives each waiting trial to one worker only.
2. Post. Any worker posts a missing job as a new trial, and records the number of the job's last trial that it knows (`after`).
   Where several workers post a job at once, the first trial counts: whoever claims a trial drops it if another trial of the
   same job has a number between `after` and its own.
3. Heartbeat. The holder keeps incrementing the trial's counter `beat`. Another worker that sees the same count for longer than
   the grace period, measured by its own clock, considers the holder dead. Clocks of two machines are never compared. On the
   holder's own machine, the holder's lock file shows a death at once.
4. Recovery. Any worker marks the trial of a dead holder as failed. Its job is then missing, and any worker posts it again: no
   job depends on the worker that marked the trial.
5. Finality. Optuna never changes a finished trial, so a holder that was considered dead by mistake cannot write a result.
6. Giving up. A job whose worker dies MAX_DEATHS times in a row at the same step has failed.
"""

from __future__ import annotations

import itertools
import math
import os
import random
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from sparsefw.config_base import ConfigError
from sparsefw.sweep.jobs import (
    AFTER,
    BEAT,
    ENDING,
    ERROR,
    HOLDER,
    JOB,
    RESULT,
    START,
    Ending,
    Job,
    JobState,
    Start,
    TrainingProgress,
    job_of_trials,
)
from sparsefw.sweep.locks import Worker, reap_if_dead
from sparsefw.sweep.storage import UNREACHABLE, damage_named, retry_while_unreachable

JOB_NAME = re.compile(r"[0-9A-Za-z]+(-[0-9A-Za-z]+)*")
RANDOM_DRAWS = 100  # of settings that no job has, before all settings are enumerated


class Ledger:
    """The jobs of one study. Its storage may come from elsewhere, so what it says is checked.

    folder    of the sweep, with the lock files of its workers
    grace     seconds without a heartbeat after which a worker is considered dead
    space     the distributions of the settings
    budget    how many jobs the study's sampler draws; None: jobs are posted instead
    """

    def __init__(
        self,
        study: optuna.Study,
        storage: BaseStorage,
        folder: Path,
        grace: float,
        space: Mapping[str, BaseDistribution] | None = None,
        budget: int | None = None,
    ) -> None:
        self.study = study
        self._storage = storage
        self._study_id = storage.get_study_id_from_name(study.study_name)
        self._folder = folder
        self._grace = grace
        self._space = dict(space or {})
        self._budget = budget
        self._beats: dict[int, tuple[Any, float]] = {}  # trial -> its last count, and when this process first saw it
        self._last_check = -math.inf

    @retry_while_unreachable
    def jobs(self) -> dict[str, Job]:
        """Return all jobs by name, in their order; of those that the sampler drew, at most `budget`."""
        trials: dict[str, list[FrozenTrial]] = {}
        with damage_named(self._storage):
            for trial in self.study.get_trials(deepcopy=False):
                name = self._job_name(trial)
                if name is not None and not _is_dropped(trial):
                    trials.setdefault(name, []).append(trial)
            names = sorted(trials, key=lambda name: (len(name), name))[: self._budget]  # 10000 comes after 9999
            return {name: job_of_trials(name, trials[name]) for name in names}

    def _job_name(self, trial: FrozenTrial | optuna.Trial) -> str | None:
        """Return the name of a trial's job; a job that the sampler drew is named after its first trial."""
        default = None if self._budget is None else f"{trial.number:04d}"
        name = trial.user_attrs.get(JOB, default)
        if name is not None and not JOB_NAME.fullmatch(str(name)):
            raise ConfigError(
                f"the ledger has a job {name!r}: a job must have a name such as 0003, since it names a folder"
            )
        return None if name is None else str(name)

    @retry_while_unreachable
    def post(self, params_of_jobs: Mapping[str, Mapping[str, Any]]) -> None:
        """Post the named jobs, with their parameters, that are new or missing."""
        known = self.jobs()
        for name, params in params_of_jobs.items():
            if name not in known:
                self._post(name, params, after=-1)
            elif known[name].state is JobState.MISSING:
                self._post(name, params, after=known[name].last_attempt)

    def _post(self, name: str, params: Mapping[str, Any], after: int) -> None:
        """Post a job; `after` is the number of its last trial that is known here (rule 2)."""
        self.study.enqueue_trial(dict(params), user_attrs={JOB: name, AFTER: after})

    @retry_while_unreachable
    def recover_jobs(self) -> list[Job]:
        """Fail the trials of dead workers, post their jobs again, and return those jobs (rules 4 and 6)."""
        now = time.monotonic()
        if now - self._last_check > self._grace / 2:
            self._beats.clear()  # after a long break this process cannot tell how long others were silent
        self._last_check = now
        recovered = []
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if self._is_alive(trial):
                continue
            if _is_dropped(trial):  # its worker died while dropping it
                self._finish(trial.number, TrialState.FAIL)
                continue
            self._finish(trial.number, TrialState.FAIL, {ENDING: Ending.DIED, ERROR: "its worker died"})
            job = self.jobs().get(self._job_name(trial) or "")
            if job is not None:
                recovered.append(job)
        self.post({job.name: job.params for job in self.jobs().values() if job.state is JobState.MISSING})
        return recovered

    def _is_alive(self, trial: FrozenTrial) -> bool:
        """Return whether the holder of a running trial counts as alive (rule 3)."""
        holder = trial.user_attrs.get(HOLDER)
        if holder is not None and reap_if_dead(holder, self._folder):
            return False
        count = trial.user_attrs.get(BEAT)
        now = time.monotonic()
        if trial.number not in self._beats or self._beats[trial.number][0] != count:
            self._beats[trial.number] = (count, now)
        return now - self._beats[trial.number][1] <= self._grace

    @retry_while_unreachable
    def claim(self, worker: Worker) -> Claim | None:
        """Take a job (rule 1). None means that there is none to take now; others may still be running theirs."""
        waiting = self.study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
        if not waiting and len(self.jobs()) >= (self._budget or 0):
            return None
        try:
            trial = self.study.ask(self._space if self._budget is not None else None)
            trial.set_user_attr(HOLDER, worker.record)
            name = self._job_name(trial)
            if name is None or name not in self.jobs() or self._is_duplicate(name, trial):
                self._drop(trial)
                return None
            if (settings := self._replacement_settings(trial)) is not None:
                if self._drop(trial):
                    self.study.enqueue_trial(settings)
                return None
            job = self.jobs()[name]
            if self._budget is None:
                for key, distribution in self._space.items():
                    trial._suggest(key, distribution)  # lets Optuna's own tools show the posted parameters
        except optuna.exceptions.UpdateFinishedTrialError:
            return None  # this process was so slow that another one considered it dead
        return Claim(self, trial, job)

    def _drop(self, trial: optuna.Trial) -> bool:
        return self._finish(trial.number, TrialState.FAIL, {ENDING: Ending.DROPPED})

    def _is_duplicate(self, name: str, trial: optuna.Trial) -> bool:
        """Return whether another trial of the job was posted before this one, unknown to its poster (rule 2)."""
        after = trial.user_attrs.get(AFTER, trial.number - 1)
        return any(
            after < other.number < trial.number and self._job_name(other) == name and not _is_dropped(other)
            for other in self.study.get_trials(deepcopy=False)
        )

    def _replacement_settings(self, trial: optuna.Trial) -> dict[str, Any] | None:
        """Return settings that no job has, if the sampler drew those of an earlier job; None to keep what it drew."""
        if self._budget is None or JOB in trial.user_attrs:
            return None
        taken = [dict(job.params) for job in self.jobs().values() if job.name != self._job_name(trial)]
        values = {key: finite_values(distribution) for key, distribution in self._space.items()}
        if trial.params not in taken or not all(values.values()):
            return None
        for _ in range(RANDOM_DRAWS):
            settings = {key: random.choice(choices) for key, choices in values.items()}
            if settings not in taken:
                return settings
        if math.prod(map(len, values.values())) > len(taken) * RANDOM_DRAWS:
            return None  # so many combinations that the draws above would have found a free one
        combinations = (dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values()))
        return next((settings for settings in combinations if settings not in taken), None)

    @retry_while_unreachable
    def retry_failed(self) -> list[str]:
        """Post all failed jobs again, and return their names."""
        failed = [job for job in self.jobs().values() if job.state is JobState.FAILED]
        for job in failed:
            self._post(job.name, job.params, after=job.last_attempt)
        return [job.name for job in failed]

    @retry_while_unreachable
    def _finish(
        self,
        number: int,
        state: TrialState,
        attributes: Mapping[str, Any] | None = None,
        value: float | None = None,
    ) -> bool:
        """Write the attributes and the final state of a trial; return False if another worker has finished it."""
        trial_id = self._storage.get_trial_id_from_study_id_trial_number(self._study_id, number)
        try:
            for key, content in (attributes or {}).items():
                self._storage.set_trial_user_attr(trial_id, key, content)
            return self._storage.set_trial_state_values(trial_id, state, None if value is None else [value])
        except optuna.exceptions.UpdateFinishedTrialError:
            return False


class Claim:
    """A job that this worker holds; `lost` becomes true when another worker takes the job over."""

    def __init__(self, ledger: Ledger, trial: optuna.Trial, job: Job) -> None:
        self.ledger = ledger
        self.trial = trial
        self.job = job
        self.lost = False
        self._ended = False  # by this worker
        self._released = threading.Event()

    @contextmanager
    def heartbeat(self, interval: float, must_stop: Callable[[], bool]) -> Iterator[None]:
        """Count in a thread while the block runs, every `interval` seconds (rule 3).

        The thread sends this process a SIGTERM when the claim is lost or `must_stop` returns true.
        """
        thread = threading.Thread(target=self._beat, args=(interval, must_stop), daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._released.set()
            thread.join()

    def _beat(self, interval: float, must_stop: Callable[[], bool]) -> None:
        for count in itertools.count(1):
            try:
                self.trial.set_user_attr(BEAT, count)
            except optuna.exceptions.UpdateFinishedTrialError:
                if self._ended:
                    return
                self.lost = True
            except UNREACHABLE:
                pass  # the database may come back before the grace period is over
            if self.lost or must_stop():
                if not self._released.is_set():
                    os.kill(os.getpid(), signal.SIGTERM)
                return
            if self._released.wait(interval):
                return

    @retry_while_unreachable
    def record_start(self, folder: Path, progress: TrainingProgress) -> None:
        """Record the folder and the machine on which the job runs, and from where it continues."""
        start = Start(str(folder.resolve()), socket.gethostname(), progress)
        self.trial.set_user_attr(START, start.record)

    @retry_while_unreachable
    def should_prune(self, value: float, epoch: int) -> bool:
        """Report the value of the compressed network after an epoch; return whether the pruner stops the training."""
        self.trial.report(value, epoch)
        return self.trial.should_prune()

    def done(self, value: float, result: Mapping[str, Any]) -> bool:
        return self._end(TrialState.COMPLETE, {RESULT: dict(result)}, value)

    def pruned(self, value: float) -> bool:
        return self._end(TrialState.PRUNED, value=value)

    def failed(self, error: str) -> bool:
        attributes = {ENDING: Ending.ERROR, ERROR: error}
        return self._end(TrialState.FAIL, attributes)

    def release(self) -> None:
        """Give the job back, for another worker to continue, because this worker stops."""
        attributes = {ENDING: Ending.RELEASED, ERROR: "interrupted"}
        if self._end(TrialState.FAIL, attributes):
            self.ledger.post({self.job.name: self.job.params})

    def _end(self, state: TrialState, attributes: Mapping[str, Any] | None = None, value: float | None = None) -> bool:
        """End the trial; return False if another worker did. From now on, a heartbeat that finds it ended has lost nothing."""
        self._ended = True
        return self.ledger._finish(self.trial.number, state, attributes, value)


def finite_values(distribution: BaseDistribution) -> Sequence[Any]:
    """Return all values of a distribution; none if they cannot be enumerated."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices
    return range(distribution.low, distribution.high + 1) if isinstance(distribution, IntDistribution) else ()


def _is_dropped(trial: FrozenTrial) -> bool:
    return trial.user_attrs.get(ENDING) == Ending.DROPPED
