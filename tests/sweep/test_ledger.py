"""The ledger: every job is done, and counted once, whoever dies at whatever moment."""

from __future__ import annotations

import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, IntDistribution

from sparsefw.sweep import ledger as module
from sparsefw.sweep import storage
from sparsefw.sweep.ledger import SAME_PLACE
from sparsefw.sweep.locks import Worker, is_dead, working
from sweep.ledgers import ledger_in

HERE = Path(__file__).parent


@pytest.fixture
def worker(tmp_path):
    with working(tmp_path) as found:
        yield found


def other(folder: Path) -> Worker:
    """A worker whose process is gone: its lock file lies there, and nobody holds it."""
    lock = folder / "workers" / "gone.lock"
    lock.parent.mkdir(exist_ok=True)
    lock.touch()
    return Worker("gone", socket.gethostname(), lock)


def completed(folder: Path) -> list[str]:
    """The job of every trial that has a result; those of a sampler are named after their first trial."""
    trials = ledger_in(folder).study.get_trials(states=(optuna.trial.TrialState.COMPLETE,))
    return sorted(trial.user_attrs.get("job", f"{trial.number:04d}") for trial in trials)


def test_a_job_is_claimed_done_and_remembered(tmp_path, worker):
    ledger = ledger_in(tmp_path)
    ledger.post({"a": {"x": 0.5}, "b": {"x": 0.25}})
    ledger.post({"a": {"x": 0.5}, "b": {"x": 0.25}})  # again, by another worker: nothing changes
    claim = ledger.claim(worker)
    assert (claim.job.name, claim.job.state, claim.job.params) == ("a", "running", {"x": 0.5})
    assert claim.done(3.0, {"plain": [1.0]})
    found = ledger_in(tmp_path).jobs()
    assert {name: job.state for name, job in found.items()} == {"a": "done", "b": "waiting"}
    assert (found["a"].value, found["a"].result) == (3.0, {"plain": [1.0]})
    assert ledger.claim(worker).job.name == "b"
    assert ledger.claim(worker) is None


def test_the_job_of_a_dead_worker_is_taken_over_at_once(tmp_path, worker):
    ledger = ledger_in(tmp_path)
    ledger.post({"a": {}})
    lost = ledger.claim(other(tmp_path))
    lost.begin(tmp_path / "runs" / "a", "step 7")
    assert ledger.claim(worker) is None
    (buried,) = ledger.bury()
    assert buried.name == "a"
    again = ledger.claim(worker)
    assert (again.job.name, again.job.begun["at"], again.job.attempts) == ("a", "step 7", 2)
    assert not lost.done(1.0, {})  # it was not dead after all: too late
    assert again.done(2.0, {})
    assert completed(tmp_path) == ["a"]
    assert ledger.jobs()["a"].value == 2.0


def test_a_live_worker_keeps_its_job(tmp_path, worker):
    ledger = ledger_in(tmp_path, grace=3.0)
    ledger.post({"a": {}})
    with ledger.claim(worker).held(0.1, lambda: False):
        end = time.monotonic() + 4.0
        while time.monotonic() < end:
            assert ledger.bury() == []
            time.sleep(0.5)


def test_silence_is_measured_by_the_clock_of_the_one_who_waits(tmp_path, worker, monkeypatch):
    """The holder's lock is on another machine; a count that stands still for longer than the grace period is its death."""
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    ledger = ledger_in(tmp_path, grace=60.0)
    ledger.post({"a": {}})
    claim = ledger.claim(Worker("far", "elsewhere", tmp_path / "cannot" / "be" / "seen"))

    def later(seconds: int) -> list[str]:
        """Looking every ten seconds."""
        for _ in range(seconds // 10):
            now[0] += 10
            buried = ledger.bury()
        return [job.name for job in buried]

    assert ledger.bury() == []
    assert later(50) == []
    claim.trial.set_user_attr("beat", 1)
    assert later(60) == []  # 110 s after the claim, but 50 s after the sign of life was seen
    now[0] += 1000  # this one was suspended, and cannot tell who was silent
    assert ledger.bury() == []
    assert later(60) == []
    assert later(10) == ["a"]
    assert ledger.claim(worker).job.name == "a"


def test_a_kill_between_burial_and_posting_loses_nothing(tmp_path, worker):
    ledger = ledger_in(tmp_path)
    ledger.post({"a": {"x": 0.5}})
    claim = ledger.claim(other(tmp_path))
    ledger._end(claim.trial.number, {"lost": True}, optuna.trial.TrialState.FAIL)  # and then the undertaker was killed
    assert ledger.jobs()["a"].state == "missing"
    ledger_in(tmp_path).bury()
    assert ledger.claim(worker).job.params == {"x": 0.5}


def test_a_kill_right_after_the_claim_loses_nothing(tmp_path, worker):
    """Before the holder could say who it is."""
    ledger = ledger_in(tmp_path, grace=0.5)
    ledger.post({"a": {}})
    ledger.study.ask()
    buried = []
    while not buried:
        buried = ledger.bury()
        time.sleep(0.1)
    assert [job.name for job in buried] == ["a"]
    assert ledger.claim(worker).job.name == "a"


def test_a_worker_taken_for_dead_while_it_claims_goes_on_with_something_else(tmp_path, worker, monkeypatch):
    ledger = ledger_in(tmp_path)
    ledger.post({"a": {}, "b": {}})
    ask, slow = ledger.study.ask, []

    def asked(space):
        trial = ask(space)
        if not slow:
            slow.append(ledger._end(trial.number, {"lost": True}, optuna.trial.TrialState.FAIL))
        return trial

    monkeypatch.setattr(ledger.study, "ask", asked)
    assert ledger.claim(worker) is None
    ledger.bury()
    assert {ledger.claim(worker).job.name, ledger.claim(worker).job.name} == {"a", "b"}


def test_of_two_attempts_the_first_holds(tmp_path, worker):
    """Two workers posted the same job at the same moment."""
    ledger = ledger_in(tmp_path)
    ledger._post("a", {}, -1)
    ledger._post("a", {}, -1)
    first = ledger.claim(worker)
    assert ledger.claim(worker) is None
    assert first.done(1.0, {})
    assert completed(tmp_path) == ["a"]
    assert ledger.jobs()["a"].state == "done"
    assert ledger.claim(worker) is None


def test_transactions_of_sqlite_lock_before_they_read(tmp_path):
    """Else two workers could read that a trial is waiting, and both take it."""
    ledger = ledger_in(tmp_path)
    with ledger._storage.engine.begin() as connection:
        connection.exec_driver_sql("SELECT * FROM trials")
        another = sqlite3.connect(tmp_path / "ledger.db", timeout=0.05)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            another.execute("BEGIN IMMEDIATE")
        another.close()


def test_a_worker_killed_while_it_claims_leaves_the_configuration_whole(tmp_path, worker):
    """Optuna writes parameters down one by one."""
    ledger = ledger_in(tmp_path)
    ledger.post({"a": {"x": 0.5, "y": 0.25}})
    trial = ledger.study.ask()
    trial.set_user_attr("holder", other(tmp_path).record)
    trial.suggest_float("x", 0.0, 1.0)
    ledger.bury()
    assert ledger.claim(worker).job.params == {"x": 0.5, "y": 0.25}


def test_a_worker_killed_beyond_the_budget_leaves_nothing_to_wait_for(tmp_path, worker):
    ledger = ledger_in(tmp_path, budget=1)
    first = ledger.claim(worker)
    surplus = ledger.study.ask({"x": ledger._space["x"]})
    surplus.set_user_attr("holder", other(tmp_path).record)
    for _ in range(3):
        ledger.bury()
        assert ledger.claim(worker) is None
    assert first.done(1.0, {})
    assert list(ledger.jobs()) == ["0000"]
    assert len(ledger.study.get_trials()) == 2  # and not one more every time


def test_a_job_posted_twice_outlives_its_first_holder(tmp_path, worker):
    """What was dropped as one too many must not stand in the way of the attempt that follows."""
    ledger = ledger_in(tmp_path)
    ledger._post("a", {}, -1)
    ledger._post("a", {}, -1)
    ledger.claim(other(tmp_path))
    assert ledger.claim(worker) is None  # dropped
    ledger.bury()
    again = ledger.claim(worker)
    assert again is not None
    assert again.done(1.0, {})
    assert completed(tmp_path) == ["a"]


def test_a_failure_posted_twice_is_tried_once(tmp_path, worker):
    ledger = ledger_in(tmp_path)
    ledger._post("a", {}, -1)
    ledger._post("a", {}, -1)
    ledger.claim(worker).failed("no")
    assert ledger.claim(worker) is None
    assert ledger.jobs()["a"].state == "failed"


def test_a_failure_is_kept_and_tried_again_only_on_request(tmp_path, worker):
    ledger = ledger_in(tmp_path)
    ledger.post({"a": {"x": 0.5}})
    ledger.claim(worker).failed("ValueError: no")
    ledger.post({"a": {"x": 0.5}})
    assert ledger.claim(worker) is None
    assert (ledger.jobs()["a"].state, ledger.jobs()["a"].error) == ("failed", "ValueError: no")
    assert ledger.retry() == ["a"]
    assert ledger.claim(worker).job.params == {"x": 0.5}


def test_what_kills_its_worker_again_and_again_at_one_place_is_given_up(tmp_path):
    ledger = ledger_in(tmp_path)
    ledger.post({"a": {}})
    for time_ in range(SAME_PLACE + 1):
        claim = ledger.claim(other(tmp_path))
        assert claim is not None
        claim.begin(tmp_path, "step 0" if time_ == 0 else "step 9")  # further on after the first time: counted anew
        ledger.bury()
    job = ledger.jobs()["a"]
    assert job.state == "failed"
    assert job.error == f"its worker died {SAME_PLACE} times, always after step 9: out of memory?"


def test_an_interrupted_job_waits_for_the_next_worker(tmp_path, worker):
    ledger = ledger_in(tmp_path)
    ledger.post({"a": {}})
    for _ in range(3 * SAME_PLACE):  # as often as one likes
        ledger.claim(worker).release()
    assert ledger.jobs()["a"].state == "waiting"


def test_a_holder_that_lost_its_job_is_told(tmp_path, worker):
    ledger = ledger_in(tmp_path)
    ledger.post({"a": {}})
    claim, heard = ledger.claim(worker), []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
    try:
        with claim.held(0.02, lambda: False):
            ledger._end(claim.trial.number, {"lost": True}, optuna.trial.TrialState.FAIL)
            while not heard:
                time.sleep(0.01)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert claim.lost


def test_a_sampled_job_keeps_its_numbers_when_it_is_taken_over(tmp_path, worker):
    ledger = ledger_in(tmp_path, budget=1)
    first = ledger.claim(other(tmp_path))
    drawn = first.job.params
    assert 0 <= drawn["x"] <= 1
    ledger.bury()
    assert ledger.claim(worker).job.params == drawn


@pytest.mark.parametrize(("budget", "different"), [(5, 5), (8, 6)])
def test_the_sampler_draws_no_settings_twice_while_there_are_others(tmp_path, worker, budget, different):
    space = {"a": CategoricalDistribution(["p", "q", "r"]), "b": IntDistribution(1, 2)}
    ledger = ledger_in(tmp_path, budget=budget, space=space)
    while len(ledger.jobs()) < budget or not all(job.settled for job in ledger.jobs().values()):
        if (claim := ledger.claim(worker)) is not None:
            claim.done(float(claim.job.params == {"a": "q", "b": 1}), {})
    drawn = [tuple(sorted(job.params.items())) for job in ledger.jobs().values()]
    assert (len(drawn), len(set(drawn))) == (budget, different)


def test_where_there_are_many_settings_none_is_drawn_twice(tmp_path, worker, monkeypatch):
    ledger = ledger_in(tmp_path, budget=12, space={"a": IntDistribution(1, 10**9, log=True)})
    monkeypatch.setattr(optuna.samplers.TPESampler, "sample_independent", lambda *given: 1)
    while len(ledger.jobs()) < 12 or not all(job.settled for job in ledger.jobs().values()):
        if (claim := ledger.claim(worker)) is not None:
            claim.done(0.0, {})
    assert len({job.params["a"] for job in ledger.jobs().values()}) == 12


def test_a_lock_tells_the_living_from_the_dead(tmp_path):
    with working(tmp_path) as worker:
        assert not is_dead(worker.record)
    gone = other(tmp_path)
    assert is_dead(gone.record)
    assert not is_dead({"lock": str(tmp_path / "not" / "here"), "host": socket.gethostname()})  # nobody knows
    assert not is_dead({**other(tmp_path).record, "host": "elsewhere"})  # its lock may not be seen here


def test_a_database_that_is_away_is_waited_for(monkeypatch):
    monkeypatch.setattr(storage.time, "sleep", lambda seconds: None)
    calls = []

    @storage.patient
    def call() -> str:
        calls.append(1)
        if len(calls) < 4:
            raise optuna.exceptions.StorageInternalError
        return "there"

    assert call() == "there"


@pytest.mark.slow
@pytest.mark.parametrize("budget", [None, 24])
def test_workers_that_are_killed_lose_and_double_nothing(tmp_path, budget):
    """Four processes, one of which is killed and replaced ten times, at moments chosen by chance."""
    ledger_in(tmp_path)
    words = [sys.executable, str(HERE / "ledgers.py"), str(tmp_path), "24", *([str(budget)] if budget else [])]
    path = os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")]))
    around = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}

    def started() -> subprocess.Popen:
        return subprocess.Popen(words, env=around)

    team, chance, kills = [started() for _ in range(4)], random.Random(0), 0
    while any(process.poll() is None for process in team):
        time.sleep(chance.uniform(0.2, 0.6))
        if kills < 10:
            place = chance.randrange(4)
            team[place].send_signal(signal.SIGKILL)
            team[place].wait()
            kills += 1
            team[place] = started()
    assert [process.returncode for process in team] == [0] * 4
    done = completed(tmp_path)
    assert len(done) == len(set(done)) == 24
    if budget is None:
        assert done == [f"{number:04d}" for number in range(24)]
    for name, job in ledger_in(tmp_path, budget=budget).jobs().items():
        assert (job.state, job.value) == ("done", float(name))
