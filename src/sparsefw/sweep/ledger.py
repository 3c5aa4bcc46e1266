"""The ledger: which job is waiting, being done by whom, done, or failed. An Optuna study that any number of workers share.

A job is a configuration to train, or a seed of the chosen one; an Optuna trial is one attempt at a job. The rules that keep every
job from being lost or counted twice, whenever a worker is killed:

1. A waiting trial is taken by `ask`, which the database gives to one worker only. Who posts a trial writes down which attempt at
   the job it knew as the last; where there is another in between, the trial is dropped as soon as it is taken.
2. Whoever holds a trial keeps counting its attribute `beat`. A worker that sees the same count for longer than the grace period,
   by its own clock, takes the holder for dead: no clocks of different machines are compared. On the holder's own machine its lock
   file tells at once.
3. A dead holder's trial is marked as failed, and its job posted again by anyone who misses it: nothing depends on the one who
   marked it staying alive in between. A holder that was not dead cannot write any more, since Optuna's finished trials are final.
"""

from __future__ import annotations

import itertools
import math
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from sparsefw.sweep.locks import Worker, is_dead
from sparsefw.sweep.storage import AWAY, patient

JOB, AFTER, BEAT, HOLDER, BEGUN = "job", "after", "beat", "holder", "begun"
ERROR, LOST, RESULT = "error", "lost", "result"
DROPPED = "another attempt holds"
TRIES = 100  # at settings that nobody drew, before all are looked through
SAME_PLACE = 5  # times that a job may lose its worker without having come any further, before it is given up


@dataclass(frozen=True)
class Job:
    """What the ledger knows of a job. state: "waiting", "running", "done", "pruned", "failed" or "missing"."""

    name: str
    state: str
    params: Mapping[str, Any] = field(default_factory=dict)
    value: float | None = None
    result: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    holder: Mapping[str, str] = field(default_factory=dict)
    begun: Mapping[str, Any] = field(default_factory=dict)  # by the last attempt: where, and at which step
    attempts: int = 0
    last: int = -1  # the number of the last attempt
    lost: int = 0  # attempts that ended with their worker, the last ones, all begun at the same place

    @property
    def settled(self) -> bool:
        return self.state in ("done", "pruned", "failed")


class Ledger:
    """The jobs of one study.

    grace     seconds for which a worker may be silent
    space     what may be drawn for their settings
    budget    so many jobs are made by the study's sampler; None: jobs are posted
    """

    def __init__(
        self,
        study: optuna.Study,
        storage: BaseStorage,
        grace: float,
        space: Mapping[str, BaseDistribution] | None = None,
        budget: int | None = None,
    ) -> None:
        self.study, self._storage, self._grace, self._budget = study, storage, grace, budget
        self._space = dict(space or {})
        self._id = storage.get_study_id_from_name(study.study_name)
        self._seen: dict[int, tuple[Any, float]] = {}  # trial -> its count, and when it was first seen
        self._looked = -math.inf

    @patient
    def jobs(self) -> dict[str, Job]:
        """All that were ever posted, in their order; of those that the sampler made, no more than its budget."""
        attempts: dict[str, list[FrozenTrial]] = {}
        for trial in self.study.get_trials(deepcopy=False):
            name = self._name(trial)
            if name is not None and trial.user_attrs.get(ERROR) != DROPPED:
                attempts.setdefault(name, []).append(trial)
        names = sorted(attempts, key=lambda name: (len(name), name))[: self._budget]  # 10000 comes after 9999
        return {name: _job(name, attempts[name]) for name in names}

    def _name(self, trial: FrozenTrial | optuna.Trial) -> str | None:
        """Of the job that a trial is an attempt at: a job of the sampler is named after its first trial."""
        drawn = None if self._budget is None else f"{trial.number:04d}"
        found = trial.user_attrs.get(JOB, drawn)
        return None if found is None else str(found)

    @patient
    def post(self, wanted: Mapping[str, Mapping[str, Any]]) -> None:
        """Jobs by their names, with their parameters: those that nobody has posted, or whose holder died."""
        known = self.jobs()
        for name, params in wanted.items():
            if name not in known or known[name].state == "missing":
                self._post(name, params, known[name].last if name in known else -1)

    def _post(self, name: str, params: Mapping[str, Any], after: int) -> None:
        """after: the number of the last attempt that is known here. If there is one in between, this is one too many."""
        self.study.enqueue_trial(dict(params), user_attrs={JOB: name, AFTER: after})

    @patient
    def bury(self) -> list[Job]:
        """Mark as failed what dead workers hold, and post it again; what died too often at one place stays failed."""
        now, buried = time.monotonic(), []
        if now - self._looked > self._grace / 2:
            self._seen.clear()  # who has not looked for long cannot tell how long others were silent
        self._looked = now
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if self._is_alive(trial):
                continue
            dropped = trial.user_attrs.get(ERROR) == DROPPED  # and then its worker died
            self._end(trial.number, {} if dropped else {LOST: True, ERROR: "its worker died"}, TrialState.FAIL)
            if (job := self.jobs().get(self._name(trial) or "")) is not None and not dropped:
                buried.append(job)
        self.post({job.name: job.params for job in self.jobs().values() if job.state == "missing"})
        return buried

    def _is_alive(self, trial: FrozenTrial) -> bool:
        holder, count, now = trial.user_attrs.get(HOLDER), trial.user_attrs.get(BEAT), time.monotonic()
        if holder is not None and is_dead(holder):
            return False
        if trial.number not in self._seen or self._seen[trial.number][0] != count:
            self._seen[trial.number] = (count, now)
        return now - self._seen[trial.number][1] <= self._grace

    @patient
    def claim(self, worker: Worker) -> Claim | None:
        """A job to do, or None: then others may still be doing theirs."""
        waiting = self.study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
        if not waiting and len(self.jobs()) >= (self._budget or 0):
            return None
        try:
            trial = self.study.ask(self._space if self._budget is not None else None)
            trial.set_user_attr(HOLDER, worker.record)
            name = self._name(trial)
            if name is None or name not in self.jobs() or self._one_too_many(name, trial):
                self._end(trial.number, {ERROR: DROPPED}, TrialState.FAIL)
                return None
            if (other := self._instead_of_double(trial)) is not None:
                if self._end(trial.number, {ERROR: DROPPED}, TrialState.FAIL):
                    self.study.enqueue_trial(other)
                return None
            job = self.jobs()[name]
            for key, kind in self._space.items() if self._budget is None else ():
                trial._suggest(key, kind)  # what was posted, for Optuna's own tools to show
        except optuna.exceptions.UpdateFinishedTrialError:
            return None  # so slow was this process that it was taken for dead
        return Claim(self, trial, job)

    def _one_too_many(self, name: str, trial: optuna.Trial) -> bool:
        """Several workers may have posted a job at once: the first one holds."""
        after = trial.user_attrs.get(AFTER, trial.number - 1)
        trials = self.study.get_trials(deepcopy=False)
        others = [one for one in trials if self._name(one) == name and one.user_attrs.get(ERROR) != DROPPED]
        return any(after < one.number < trial.number for one in others)

    def _instead_of_double(self, trial: optuna.Trial) -> dict[str, Any] | None:
        """Where the sampler drew what an earlier job has, settings that none has, if there are such."""
        if self._budget is None or JOB in trial.user_attrs:
            return None
        drawn = [dict(job.params) for job in self.jobs().values() if job.name != self._name(trial)]
        values = {key: values_of(kind) for key, kind in self._space.items()}
        if trial.params not in drawn or not all(values.values()):
            return None
        for _ in range(TRIES):
            if (one := {key: random.choice(choices) for key, choices in values.items()}) not in drawn:
                return one
        few = math.prod(map(len, values.values())) <= len(drawn) * TRIES  # else the tries would have found one
        every = (dict(zip(values, one, strict=True)) for one in itertools.product(*values.values()) if few)
        return next((one for one in every if one not in drawn), None)

    @patient
    def retry(self) -> list[str]:
        """Post again what failed by itself."""
        failed = [job for job in self.jobs().values() if job.state == "failed"]
        for job in failed:
            self._post(job.name, job.params, job.last)
        return [job.name for job in failed]

    @patient
    def _end(self, number: int, attributes: Mapping[str, Any], state: TrialState, value: float | None = None) -> bool:
        """Write the last word about a trial; False where another worker has had it."""
        trial = self._storage.get_trial_id_from_study_id_trial_number(self._id, number)
        try:
            for key, content in attributes.items():
                self._storage.set_trial_user_attr(trial, key, content)
            return self._storage.set_trial_state_values(trial, state, None if value is None else [value])
        except optuna.exceptions.UpdateFinishedTrialError:
            return False


class Claim:
    """A job that this worker holds. While the block lasts a thread keeps counting; `lost` is set where others took it."""

    def __init__(self, ledger: Ledger, trial: optuna.Trial, job: Job) -> None:
        self.ledger, self.trial, self.job = ledger, trial, job
        self.lost = False
        self._over = threading.Event()

    @contextmanager
    def held(self, every: float, gone: Callable[[], bool]) -> Iterator[None]:
        """Count every so many seconds. Where the claim is lost, or `gone` says that this process is to end, it gets a SIGTERM."""
        thread = threading.Thread(target=self._count, args=(every, gone), daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _count(self, every: float, gone: Callable[[], bool]) -> None:
        count = 0
        while True:
            count += 1
            try:
                self.trial.set_user_attr(BEAT, count)
            except optuna.exceptions.UpdateFinishedTrialError:
                self.lost = True
            except AWAY:
                pass  # the database may come back before the grace period is over
            if self.lost or gone():
                if not self._over.is_set():
                    os.kill(os.getpid(), signal.SIGTERM)
                return
            if self._over.wait(every):
                return

    @patient
    def begin(self, folder: Path, at: str) -> None:
        """Say where the job is done, and from where on, such as "step 120"."""
        self.trial.set_user_attr(BEGUN, {"folder": str(folder.resolve()), "host": socket.gethostname(), "at": at})

    @patient
    def is_hopeless(self, value: float, epoch: int) -> bool:
        """Report how good the compressed network is; whether the study's pruner would stop here."""
        self.trial.report(value, epoch)
        return self.trial.should_prune()

    def done(self, value: float, result: Mapping[str, Any]) -> bool:
        return self.ledger._end(self.trial.number, {RESULT: dict(result)}, TrialState.COMPLETE, value)

    def pruned(self, value: float) -> bool:
        return self.ledger._end(self.trial.number, {ERROR: "hopeless"}, TrialState.PRUNED, value)

    def failed(self, error: str) -> bool:
        return self.ledger._end(self.trial.number, {ERROR: error}, TrialState.FAIL)

    def release(self) -> None:
        """Nothing is wrong, but this worker ends: whoever comes next goes on."""
        if self.ledger._end(self.trial.number, {LOST: False, ERROR: "interrupted"}, TrialState.FAIL):
            self.ledger.post({self.job.name: self.job.params})


def values_of(kind: BaseDistribution) -> Sequence[Any]:
    """All there are; none where they cannot be counted."""
    if isinstance(kind, CategoricalDistribution):
        return kind.choices
    return range(kind.low, kind.high + 1) if isinstance(kind, IntDistribution) else ()


def _job(name: str, attempts: Sequence[FrozenTrial]) -> Job:
    """One of the states that its attempts leave it in."""
    by = {state: [t for t in attempts if t.state == state] for state in TrialState}
    last = attempts[-1]
    lost = _lost(attempts)
    params = {**last.system_attrs.get("fixed_params", {}), **last.params}  # a worker may have died between two of them
    about: dict[str, Any] = dict(params=params, attempts=len(attempts), lost=lost, last=last.number)
    begun: dict[str, Any] = next((t.user_attrs[BEGUN] for t in reversed(attempts) if BEGUN in t.user_attrs), {})
    for state, word in ((TrialState.COMPLETE, "done"), (TrialState.PRUNED, "pruned")):
        if by[state]:
            first = by[state][0]
            return Job(name, word, value=first.value, result=first.user_attrs.get(RESULT, {}), begun=begun, **about)
    for state, word in ((TrialState.RUNNING, "running"), (TrialState.WAITING, "waiting")):
        if by[state]:
            return Job(name, word, holder=by[state][0].user_attrs.get(HOLDER, {}), begun=begun, **about)
    if LOST in last.user_attrs and lost < SAME_PLACE:
        return Job(name, "missing", begun=begun, **about)
    error = last.user_attrs.get(ERROR, "failed")
    if LOST in last.user_attrs:
        error = f"its worker died {lost} times, always after {begun.get('at', 'the start')}: out of memory?"
    return Job(name, "failed", error=error, begun=begun, **about)


def _lost(attempts: Sequence[FrozenTrial]) -> int:
    """How many of the last attempts died with their worker, having begun at the same place."""
    count, place = 0, None
    for trial in reversed(attempts):
        if trial.state == TrialState.WAITING:
            continue
        begun = trial.user_attrs.get(BEGUN, {}).get("at", "the start")
        if not trial.user_attrs.get(LOST) or place not in (None, begun):
            break
        count, place = count + 1, begun
    return count
