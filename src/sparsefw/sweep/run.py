"""`sparsefw sweep`: start workers, replace those that die, tell what comes in, and end cleanly when asked to."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from sparsefw.atomic_io import write_json
from sparsefw.config_base import ConfigError
from sparsefw.environment import cores
from sparsefw.errors import Interrupted
from sparsefw.sweep.ledger import Job
from sparsefw.sweep.select import results
from sparsefw.sweep.sweep import Sweep, settled_count
from sparsefw.sweep.sweep_plan import SweepPlan, in_words
from sparsefw.sweep.worker import BAD_INPUT, VARIABLE, check_data

POLL = 0.5  # seconds
REPEAT = 20.0  # seconds after which workers that were asked to end are asked again; a checkpoint may take some
QUICK, PATIENCE = 20.0, 10  # a worker that ends within so many seconds, so many times in a row, will not do better


def usual_workers() -> int:
    """One per GPU, or one per core."""
    return torch.cuda.device_count() or cores()


def threads(workers: int) -> dict[str, str]:
    """For the environments of so many processes, where it does not say so already: each has its share of the cores.

    Passive: threads that wait for each other sleep. By default they spin, which on a machine that others use, too, takes the core
    from the one that is waited for: a training of seconds then takes minutes.
    """
    return {"OMP_NUM_THREADS": str(max(1, cores() // workers)), "OMP_WAIT_POLICY": "PASSIVE"}


def begin_sweep(plan: SweepPlan, url: str, folder: Path, data: Path | None) -> Sweep:
    """Begun or gone on with; where the data are not here, nothing is begun."""
    check_data(plan, data)
    return Sweep.begin(plan, url, folder)


def run_sweep(
    sweep: Sweep, url: str, workers: int, data: Path | None = None, say: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Work until the sweep is over, whoever does it; returns its results, which are then in results.json, too.

    say: gets a line for everything that is done.
    """
    if workers < 1:
        raise ConfigError(f"workers={workers}: at least one")
    news = News(sweep, say)
    with stop_asked() as asked:
        team: list[Member] = []
        try:
            while not sweep.finished():
                team = team or [Member(sweep, url, data, number, workers) for number in range(workers)]
                news.tell()
                if asked:
                    raise Interrupted(f"{asked[0]}: stopped; the same command goes on from here")
                for member in team:
                    member.look_after(say)
                time.sleep(POLL)
        finally:
            _dismiss(team, asked)
            news.tell()
            found = results(sweep)
            write_json(sweep.folder / "results.json", found)
    return found


class Member:
    """One worker process, which is started again when it dies."""

    def __init__(self, sweep: Sweep, url: str, data: Path | None, number: int, workers: int) -> None:
        self._asked = {
            "url": url,
            "name": sweep.plan.name,
            "folder": str(sweep.folder.resolve()),
            "data": None if data is None else str(data.resolve()),
            "parent": os.getpid(),
        }
        self._gpu = number % torch.cuda.device_count() if torch.cuda.device_count() else None
        self._sweep, self._threads, self._quick = sweep, threads(workers), 0
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        self._since = time.monotonic()
        around = {**self._threads, **os.environ, VARIABLE: json.dumps(self._asked)}
        if self._gpu is not None:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            around["CUDA_VISIBLE_DEVICES"] = visible.split(",")[self._gpu] if visible else str(self._gpu)
        # In a session of its own: a Ctrl-C at the terminal is for the process that started it, which asks it to end.
        return subprocess.Popen([sys.executable, "-m", "sparsefw.sweep.worker"], env=around, start_new_session=True)

    def look_after(self, say: Callable[[str], None]) -> None:
        code = self.process.poll()
        if code is None or (code == 0 and self._sweep.finished()):
            return
        if code == BAD_INPUT:
            raise ConfigError("no worker can begin here; the line above says why")
        self._quick = self._quick + 1 if time.monotonic() - self._since < QUICK else 0
        why = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        if self._quick >= PATIENCE:
            raise RuntimeError(f"workers end as soon as they are started ({why}); what they said stands above")
        say(f"a worker died ({why}): starting another")
        self.process = self._start()


def _dismiss(team: list[Member], asked: list[str]) -> None:
    """Ask all to end, which writes checkpoints; asked twice, do not wait for them."""
    told = -math.inf
    while left := [member for member in team if member.process.poll() is None]:
        if time.monotonic() - told > REPEAT:  # one that just lost its job may have taken the signal for that
            told = time.monotonic()
            for member in left:
                member.process.send_signal(signal.SIGTERM)
        if len(asked) > 1:
            for member in left:
                member.process.kill()
        time.sleep(0.05)


@contextmanager
def stop_asked() -> Iterator[list[str]]:
    """A list that gets the names of signals that ask to stop."""
    asked: list[str] = []

    def hear(which: int, frame: FrameType | None) -> None:
        asked.append(signal.Signals(which).name)

    before = {which: signal.signal(which, hear) for which in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)


def duration(seconds: float) -> str:
    """ "40 s", "5 min", "2 h 10 min": no more than is known."""
    if seconds < 90:
        return f"{max(10, 10 * round(seconds / 10))} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


@dataclass
class News:
    """What has happened since the last look, a line each."""

    sweep: Sweep
    say: Callable[[str], None]
    known: set[tuple[str, str]] = field(default_factory=set)
    before: int = 0  # done by an earlier process
    since: float = 0.0

    def __post_init__(self) -> None:
        self.known = {(row, job.name) for row, job in self._settled()}
        if self.known:
            self.say(
                f"{self.sweep.plan.name}: going on; {len(self.known)} of {settled_count(self.sweep)[1]} are done already"
            )
        self.before, self.since = len(self.known), time.monotonic()

    def tell(self) -> None:
        for row, job in self._settled():
            if (row, job.name) not in self.known:
                self.known.add((row, job.name))
                self.say(f"[{self._place()}] {row} {job.name}: {self._words(row, job)}")

    def _place(self) -> str:
        """ "3/8, about 5 min left": a guess from what was done since this process began."""
        done, all_ = len(self.known), settled_count(self.sweep)[1]
        each = (time.monotonic() - self.since) / (done - self.before)
        return f"{done}/{all_}" + (f", about {duration(each * (all_ - done))} left" if done < all_ else "")

    def _settled(self) -> Iterator[tuple[str, Job]]:
        for row in self.sweep.plan.rows:
            for ledger in (self.sweep.trials(row), self.sweep.finals(row)):
                yield from ((row, job) for job in ledger.jobs().values() if job.settled)

    def _words(self, row: str, job: Job) -> str:
        if job.state == "failed":
            return f"failed: {job.error}"
        settings = self.sweep.plan.chosen(row, job.params) if "seed" not in job.name else {}
        words = in_words(settings)
        split = "test" if "seed" in job.name else "validation"
        text = f"{split} {job.result.get('metric', 'metric')} {job.value:.2f} on average over the ratios"
        return f"{words + ': ' if words else ''}{text}{', stopped as hopeless' if job.state == 'pruned' else ''}"
