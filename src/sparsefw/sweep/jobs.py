"""Jobs and their states, derived from the Optuna trials that are attempts at them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from optuna.trial import FrozenTrial, TrialState

MAX_DEATHS = 5  # times that a job may lose its worker at the same step before it counts as failed

# Names of the attributes that a trial has in the database.
JOB = "job"  # the name of the job
AFTER = "after"  # the number of the job's last trial when this one was posted
HOLDER = "holder"  # the worker that runs the trial
BEAT = "beat"  # a counter that the holder increments
START = "start"  # folder, machine and step at which the holder started
ENDING = "ending"  # why a trial failed, an `Ending`
ERROR = "error"  # the message of a failure
RESULT = "result"  # the figures of a finished trial


class JobState(StrEnum):
    """The state of a job, as its trials imply it."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    PRUNED = "pruned"  # stopped early by the pruner
    FAILED = "failed"
    MISSING = "missing"  # its worker died or was stopped: the job must be posted again


class Ending(StrEnum):
    """Why a trial failed."""

    ERROR = "error"  # its training raised an exception
    DIED = "died"  # its worker died
    RELEASED = "released"  # its worker was asked to stop
    DROPPED = "dropped"  # another trial of the same job was posted before it


@dataclass(frozen=True)
class TrainingProgress:
    """How far a run has come: a step of its training, or the end of it."""

    step: int
    trained: bool = False

    def __str__(self) -> str:
        return "the end of training" if self.trained else f"step {self.step}"


@dataclass(frozen=True)
class Start:
    """Where a worker started its attempt at a job, and from which step."""

    folder: str
    host: str
    progress: TrainingProgress

    @property
    def record(self) -> dict[str, Any]:
        """Return the value of the attribute START."""
        return asdict(self)

    @classmethod
    def of(cls, trial: FrozenTrial) -> Start | None:
        """Read the attribute START of a trial; None where its worker did not get that far."""
        if START not in trial.user_attrs:
            return None
        record = trial.user_attrs[START]
        return cls(record["folder"], record["host"], TrainingProgress(**record["progress"]))


@dataclass(frozen=True)
class Job:
    """A configuration to train, or one seed of the chosen configuration.

    params          the parameters of the configuration, as Optuna stores them
    value           the figure by which configurations are compared; None unless done or pruned
    start           of the last attempt that recorded one
    attempts        how many trials the job has
    last_attempt    the number of the last of them
    """

    name: str
    state: JobState
    params: Mapping[str, Any] = field(default_factory=dict)
    value: float | None = None
    result: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    start: Start | None = None
    attempts: int = 0
    last_attempt: int = -1

    @property
    def finished(self) -> bool:
        return self.state in (JobState.DONE, JobState.PRUNED, JobState.FAILED)


def job_of_trials(name: str, trials: Sequence[FrozenTrial]) -> Job:
    """Derive a job from all trials that are attempts at it, in their order.

    A finished trial decides; else one that runs, else one that waits, else the last failure.
    """
    last = trials[-1]
    start = next((start for trial in reversed(trials) if (start := Start.of(trial)) is not None), None)
    common: dict[str, Any] = dict(
        name=name,
        # A worker may have died after storing some of the parameters; those that were posted are in "fixed_params".
        params={**last.system_attrs.get("fixed_params", {}), **last.params},
        start=start,
        attempts=len(trials),
        last_attempt=last.number,
    )
    for trial_state, state in ((TrialState.COMPLETE, JobState.DONE), (TrialState.PRUNED, JobState.PRUNED)):
        if (trial := _first_in_state(trials, trial_state)) is not None:
            return Job(state=state, value=trial.value, result=trial.user_attrs.get(RESULT, {}), **common)
    for trial_state, state in ((TrialState.RUNNING, JobState.RUNNING), (TrialState.WAITING, JobState.WAITING)):
        if _first_in_state(trials, trial_state) is not None:
            return Job(state=state, **common)
    if last.user_attrs.get(ENDING) not in (Ending.DIED, Ending.RELEASED):
        return Job(state=JobState.FAILED, error=last.user_attrs.get(ERROR, "failed"), **common)
    deaths = _deaths_at_same_step(trials)
    if deaths < MAX_DEATHS:
        return Job(state=JobState.MISSING, **common)
    place = "the start" if start is None else start.progress
    error = f"its worker died {deaths} times, always after {place}: out of memory?"
    return Job(state=JobState.FAILED, error=error, **common)


def _first_in_state(trials: Sequence[FrozenTrial], state: TrialState) -> FrozenTrial | None:
    return next((trial for trial in trials if trial.state == state), None)


def _deaths_at_same_step(trials: Sequence[FrozenTrial]) -> int:
    """Count the last attempts in a row whose worker died, all started at the same step."""
    deaths = 0
    steps: set[TrainingProgress | None] = set()
    for trial in reversed(trials):
        if trial.state == TrialState.WAITING:
            continue
        start = Start.of(trial)
        steps.add(None if start is None else start.progress)
        if trial.user_attrs.get(ENDING) != Ending.DIED or len(steps) > 1:
            break
        deaths += 1
    return deaths
