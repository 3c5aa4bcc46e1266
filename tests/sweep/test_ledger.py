"""The ledger: every job is finished, and counted once, whichever worker dies and whenever."""

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

from sparsefw.sweep import ledger as ledger_module
from sparsefw.sweep import storage
from sparsefw.sweep.jobs import MAX_DEATHS, Ending, TrainingProgress
from sparsefw.sweep.locks import Worker, lock_file, reap_if_dead, registered_worker
from sparsefw.sweep.processes import stop_signals_collected
from sweep.ledgers import ledger_in

HERE = Path(__file__).parent


@pytest.fixture
def worker(tmp_path):
    with registered_worker(tmp_path) as registered:
        yield registered


def dead_worker(folder: Path) -> Worker:
    """Return a worker whose process is gone: its lock file exists, and nobody holds it."""
    gone = Worker("0123456789ab", socket.gethostname())
    lock = lock_file(folder, gone.name)
    lock.parent.mkdir(exist_ok=True)
    lock.touch()
    return gone


def completed_jobs(folder: Path) -> list[str]:
    """Return the job of every complete trial; jobs that the sampler drew are named after their first trial."""
    trials = ledger_in(folder).study.get_trials(states=(optuna.trial.TrialState.COMPLETE,))
    return sorted(trial.user_attrs.get("job", f"{trial.number:04d}") for trial in trials)


def test_a_job_is_claimed_done_and_remembered(tmp_path, worker):
    ledger = ledger_in(tmp_path)
    ledger.post({"a": {"x": 0.5}, "b": {"x": 0.25}})
    ledger.post({"a": {"x": 0.5}, "b": {"x": 0.25}})  # again, by another worker: nothing changes
    claim = ledger.claim(worker)
    assert (claim.job.name, claim.job.state, claim.job.params) == ("a", "running", {"x": 0.5})
    assert claim.done(3.0, {"plain": [1.0]})
    jobs = ledger_in(tmp_path).jobs()
    assert {name: job.state for name, job in jobs.items()} == {"a": "done", "b": "waiting"}
    assert (jobs["a"].value, jobs["a"].result) == (3.0, {"plain": [1.0]})
    assert ledger.claim(worker).job.name == "b"
    assert ledger.claim(worker) is None


def test_the_job_of_a_dead_worker_is_taken_over_at_once(tmp_path, worker):
    ledger = ledger_in(tmp_path)
    ledger.post({"a": {}})
    lost = ledger.claim(dead_worker(tmp_path))
    lost.record_start(tmp_path / "runs" / "a", TrainingProgress(7))
    assert ledger.claim(worker) is None
    (recovered,) = ledger.recover_jobs()
    assert recovered.name == "a"
    again = ledger.claim(worker)
    assert (again.job.name, again.job.start.progress, again.job.attempts) == ("a", TrainingProgress(7), 2)
    assert not lost.done(1.0, {})  # it was not dead after all: too late
    assert again.done(2.0, {})
    assert completed_jobs(tmp_path) == ["a"]
    assert ledger.jobs()["a"].value == 2.0


def test_a_live_worker_keeps_its_job(tmp_path, worker):
    ledger = ledger_in(tmp_path, grace=3.0)
    ledger.post({"a": {}})
    with ledger.claim(worker).heartbeat(0.1, lambda: False):
        end = time.monotonic() + 4.0
        while time.monotonic() < end:
            assert ledger.recover_jobs() == []
            time.sleep(0.5)


def test_missing_heartbeats_are_timed_by_the_clock_of_the_observer(tmp_path, worker, monkeypatch):
    """The holder is on another machine: it counts as dead when its count does not change for the grace period."""
    now = [1000.0]
    monkeypatch.setattr(ledger_module.time, "monotonic", lambda: now[0])
    ledger = ledger_in(tmp_path, grace=60.0)
    ledger.post({"a": {}})
    claim = ledger.claim(Worker("0123456789ab", "elsewhere"))

    def recovered_after(seconds: int) -> list[str]:
        """Check every ten seconds; return what the last check recovered."""
        for _ in range(seconds // 10):
            now[0] += 10
            recovered = ledger.recover_jobs()
        return [job.name for job in recovered]

    assert ledger.recover_jobs() == []
    assert recovered_after(50) == []
    claim.trial.set_user_attr("beat", 1)
    assert recovered_after(60) == []  # 110 s after the claim, but 50 s after the heartbeat was seen
    now[0] += 1000  # this process was suspended, and cannot tell who was silent
    assert ledger.recover_jobs() == []
    assert recovered_after(60) == []
    assert recovered_after(10) == ["a"]
    assert ledger.claim(worker).job.name == "a"


def test_a_kill_between_marking_and_posting_loses_no_job(tmp_path, worker):
    ledger = ledger_in(tmp_path)
    ledger.post({"a": {"x": 0.5}})
    claim = ledger.claim(dead_worker(tmp_path))
    ledger._finish(claim.trial.number, optuna.trial.TrialState.FAIL, {"ending": Ending.DIED})
    assert ledger.jobs()["a"].state == "missing"
    ledger_in(tmp_path).recover_jobs()
    assert ledger.claim(worker).job.params == {"x": 0.5}


def test_a_kill_right_after_the_claim_loses_no_job(tmp_path, worker):
    """The holder was not recorded yet."""
    ledger = ledger_in(tmp_path, grace=0.5)
    ledger.post({"a": {}})
    ledger.study.ask()
    recovered = []
    while not recovered:
        recovered = ledger.recover_jobs()
        time.sleep(0.1)
    assert [job.name for job in recovered] == ["a"]
    assert ledger.claim(worker).job.name == "a"


def test_a_worker_that_counts_as_dead_while_it_claims_takes_another_job(tmp_path, worker, monkeypatch):
    ledger = ledger_in(tmp_path)
    ledger.post({"a": {}, "b": {}})
    ask = ledger.study.ask
    failed = []

    def slow_ask(space):
        trial = ask(space)
        if not failed:
            failed.append(ledger._finish(trial.number, optuna.trial.TrialState.FAIL, {"ending": Ending.DIED}))
        return trial

    monkeypatch.setattr(ledger.study, "ask", slow_ask)
    assert ledger.claim(worker) is None
    ledger.recover_jobs()
    assert {ledger.claim(worker).job.name, ledger.claim(worker).job.name} == {"a", "b"}


def test_of_two_trials_of_a_job_the_first_counts(tmp_path, worker):
    """Two workers posted the same job at the same moment."""
    ledger = ledger_in(tmp_path)
    ledger._post("a", {}, -1)
    ledger._post("a", {}, -1)
    first = ledger.claim(worker)
    assert ledger.claim(worker) is None
    assert first.done(1.0, {})
    assert completed_jobs(tmp_path) == ["a"]
    assert ledger.jobs()["a"].state == "done"
    assert ledger.claim(worker) is None


def test_transactions_of_sqlite_lock_before_they_read(tmp_path):
    """Otherwise two workers could read that a trial is waiting, and both take it."""
    ledger = ledger_in(tmp_path)
    with ledger._storage.engine.begin() as connection:
        connection.exec_driver_sql("SELECT * FROM trials")
        another = sqlite3.connect(tmp_path / "ledger.db", timeout=0.05)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            another.execute("BEGIN IMMEDIATE")
        another.close()


def test_a_worker_killed_while_it_claims_leaves_all_parameters(tmp_path, worker):
    """Optuna stores the parameters of a trial one by one."""
    ledger = ledger_in(tmp_path)
    ledger.post({"a": {"x": 0.5, "y": 0.25}})
    trial = ledger.study.ask()
    trial.set_user_attr("holder", dead_worker(tmp_path).record)
    trial.suggest_float("x", 0.0, 1.0)
    ledger.recover_jobs()
    assert ledger.claim(worker).job.params == {"x": 0.5, "y": 0.25}


def test_a_trial_beyond_the_budget_is_not_tried_again_when_its_worker_dies(tmp_path, worker):
    ledger = ledger_in(tmp_path, budget=1)
    first = ledger.claim(worker)
    surplus = ledger.study.ask({"x": ledger._space["x"]})
    surplus.set_user_attr("holder", dead_worker(tmp_path).record)
    for _ in range(3):
        ledger.recover_jobs()
        assert ledger.claim(worker) is None
    assert first.done(1.0, {})
    assert list(ledger.jobs()) == ["0000"]
    assert len(ledger.study.get_trials()) == 2  # not one more after every recovery


def test_a_job_posted_twice_survives_its_first_holder(tmp_path, worker):
    """The dropped trial must not keep the next one from being claimed."""
    ledger = ledger_in(tmp_path)
    ledger._post("a", {}, -1)
    ledger._post("a", {}, -1)
    ledger.claim(dead_worker(tmp_path))
    assert ledger.claim(worker) is None  # dropped
    ledger.recover_jobs()
    again = ledger.claim(worker)
    assert again is not None
    assert again.done(1.0, {})
    assert completed_jobs(tmp_path) == ["a"]


def test_a_job_posted_twice_fails_once(tmp_path, worker):
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
    assert ledger.retry_failed() == ["a"]
    assert ledger.claim(worker).job.params == {"x": 0.5}


def test_a_job_whose_workers_keep_dying_at_the_same_step_fails(tmp_path):
    ledger = ledger_in(tmp_path)
    ledger.post({"a": {}})
    for attempt in range(MAX_DEATHS + 1):
        claim = ledger.claim(dead_worker(tmp_path))
        assert claim is not None
        # Progress between the first and the second death: the count starts again.
        claim.record_start(tmp_path, TrainingProgress(0 if attempt == 0 else 9))
        ledger.recover_jobs()
    job = ledger.jobs()["a"]
    assert job.state == "failed"
    assert job.error == f"its worker died {MAX_DEATHS} times, always after step 9: out of memory?"


def test_an_interrupted_job_waits_for_the_next_worker(tmp_path, worker):
    ledger = ledger_in(tmp_path)
    ledger.post({"a": {}})
    for _ in range(3 * MAX_DEATHS):  # without a limit
        ledger.claim(worker).release()
    assert ledger.jobs()["a"].state == "waiting"


def test_a_holder_that_lost_its_job_gets_a_signal(tmp_path, worker):
    ledger = ledger_in(tmp_path)
    ledger.post({"a": {}})
    claim = ledger.claim(worker)
    received = []
    before = signal.signal(signal.SIGTERM, lambda *_: received.append(1))
    try:
        with claim.heartbeat(0.02, lambda: False):
            ledger._finish(claim.trial.number, optuna.trial.TrialState.FAIL, {"ending": Ending.DIED})
            while not received:
                time.sleep(0.01)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert claim.lost


def test_a_holder_that_ended_its_job_gets_no_signal(tmp_path, worker):
    """It still has to clean up when the next heartbeat finds the trial ended."""
    ledger = ledger_in(tmp_path)
    ledger.post({"a": {}})
    claim = ledger.claim(worker)
    with stop_signals_collected() as signals, claim.heartbeat(0.02, lambda: False):
        assert claim.done(1.0, {})
        time.sleep(0.3)
    assert signals == []
    assert not claim.lost


def test_a_sampled_job_keeps_its_parameters_when_it_is_taken_over(tmp_path, worker):
    ledger = ledger_in(tmp_path, budget=1)
    first = ledger.claim(dead_worker(tmp_path))
    drawn = first.job.params
    assert 0 <= drawn["x"] <= 1
    ledger.recover_jobs()
    assert ledger.claim(worker).job.params == drawn


@pytest.mark.parametrize(("budget", "different"), [(5, 5), (8, 6)])
def test_settings_are_repeated_only_when_all_were_drawn(tmp_path, worker, budget, different):
    space = {"a": CategoricalDistribution(["p", "q", "r"]), "b": IntDistribution(1, 2)}
    ledger = ledger_in(tmp_path, budget=budget, space=space)
    while len(ledger.jobs()) < budget or not all(job.finished for job in ledger.jobs().values()):
        if (claim := ledger.claim(worker)) is not None:
            claim.done(float(claim.job.params == {"a": "q", "b": 1}), {})
    drawn = [tuple(sorted(job.params.items())) for job in ledger.jobs().values()]
    assert (len(drawn), len(set(drawn))) == (budget, different)


def test_settings_are_not_repeated_in_a_large_space(tmp_path, worker, monkeypatch):
    ledger = ledger_in(tmp_path, budget=12, space={"a": IntDistribution(1, 10**9, log=True)})
    monkeypatch.setattr(optuna.samplers.TPESampler, "sample_independent", lambda *arguments: 1)
    while len(ledger.jobs()) < 12 or not all(job.finished for job in ledger.jobs().values()):
        if (claim := ledger.claim(worker)) is not None:
            claim.done(0.0, {})
    assert len({job.params["a"] for job in ledger.jobs().values()}) == 12


def test_a_lock_shows_whether_its_worker_lives(tmp_path):
    with registered_worker(tmp_path) as worker:
        assert not reap_if_dead(worker.record, tmp_path)
    gone = dead_worker(tmp_path)
    assert not reap_if_dead(gone.record, tmp_path / "other")  # a worker of another folder of the sweep
    assert reap_if_dead(gone.record, tmp_path)
    assert not reap_if_dead(gone.record, tmp_path)  # somebody else was faster
    assert not reap_if_dead(
        {**dead_worker(tmp_path).record, "host": "elsewhere"}, tmp_path
    )  # its lock may not be seen here


def test_calls_are_repeated_until_the_database_answers(monkeypatch):
    monkeypatch.setattr(storage.time, "sleep", lambda seconds: None)
    calls = []

    @storage.retry_while_unreachable
    def call() -> str:
        calls.append(1)
        if len(calls) < 4:
            raise optuna.exceptions.StorageInternalError
        return "answer"

    assert call() == "answer"


@pytest.mark.slow
@pytest.mark.parametrize("budget", [None, 24])
def test_killed_workers_neither_lose_nor_repeat_jobs(tmp_path, budget):
    """Four processes; ten times, at a random moment, a random one is killed and replaced."""
    ledger_in(tmp_path)
    words = [sys.executable, str(HERE / "ledgers.py"), str(tmp_path), "24", *([str(budget)] if budget else [])]
    path = os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}

    def start() -> subprocess.Popen:
        return subprocess.Popen(words, env=environment)

    team = [start() for _ in range(4)]
    chance = random.Random(0)
    kills = 0
    while any(process.poll() is None for process in team):
        time.sleep(chance.uniform(0.2, 0.6))
        if kills < 10:
            number = chance.randrange(4)
            team[number].send_signal(signal.SIGKILL)
            team[number].wait()
            kills += 1
            team[number] = start()
    assert [process.returncode for process in team] == [0] * 4
    done = completed_jobs(tmp_path)
    assert len(done) == len(set(done)) == 24
    if budget is None:
        assert done == [f"{number:04d}" for number in range(24)]
    for name, job in ledger_in(tmp_path, budget=budget).jobs().items():
        assert (job.state, job.value) == ("done", float(name))
