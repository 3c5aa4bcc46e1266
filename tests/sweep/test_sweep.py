"""Sweeps as users run them: undisturbed, killed, interrupted, joined, with failures; in a file and on a server."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time

import optuna
import pytest

from sparsefw.runfolder import find_runs
from sparsefw.runfolder.read import read_facts
from sparsefw.sweep.storage import open_storage
from sparsefw.sweep.sweep import Sweep
from sweep.sweeps import GRID, SWEEP_SECONDS, command, kill_workers, run_to_end, workers_of, write_grid
from train.harness import ended, start

pytestmark = pytest.mark.slow


def assert_every_configuration_once(url: str, name: str = "tiny") -> None:
    storage = open_storage(url)
    for study in optuna.get_all_study_summaries(storage):
        if study.study_name != name:
            trials = optuna.load_study(study_name=study.study_name, storage=storage).get_trials()
            done = [t.user_attrs["job"] for t in trials if t.state == optuna.trial.TrialState.COMPLETE]
            assert sorted(set(done)) == sorted(done), study.study_name
            assert len(done) == 2, study.study_name  # two configurations a row, and two seeds of one
    storage.engine.dispose()


def reproducible(results: dict) -> dict:
    """Return the part of the results that depends neither on time nor on folders."""
    kept = {}
    for row, values in results["rows"].items():
        tried = {job: (trial["validation"], trial["plain"]) for job, trial in values["tried"].items()}
        test = values["test"]
        kept[row] = (tried, values["chosen"], test["dense"], test["plain"], test["removed_refit"], test["parameters"])
    return kept


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Run a sweep without kills; return its folder, its results and its messages."""
    folder = tmp_path_factory.mktemp("undisturbed")
    results, messages = run_to_end(command(write_grid(folder), folder / "sweep", "--workers", "2", "--seeds", "2"))
    return folder, results, messages


def test_an_undisturbed_sweep(undisturbed):
    folder, results, messages = undisturbed
    assert results["finished"]
    assert_every_configuration_once(f"sqlite:///{folder / 'sweep' / 'ledger.db'}")
    for row in results["rows"].values():
        values = {job: trial["validation"] for job, trial in row["tried"].items()}
        assert row["chosen"] == max(values, key=values.get)
        curve = json.loads(
            (folder / "sweep" / "SGD" / "0000" / "curves-validation" / "filters-masked.json").read_text()
        )
        assert curve["split"] == "validation"
    assert json.loads((folder / "sweep" / "results.json").read_text())["rows"].keys() == results["rows"].keys()
    assert "[8/8]" in messages


def test_only_chosen_configurations_are_evaluated_on_test_images(undisturbed):
    folder, results, _ = undisturbed
    for row, values in results["rows"].items():
        for run in (folder / "sweep" / row).iterdir():
            chosen = run.name.startswith(values["chosen"])
            assert (run / "curves" / "filters-masked.json").exists() == chosen
            assert (run / "model.safetensors").exists() == chosen


def test_every_run_records_its_job(undisturbed):
    jobs = [read_facts(folder).job for folder in find_runs(undisturbed[0] / "sweep")]
    assert {job.sweep for job in jobs} == {"tiny"}
    assert {job.row for job in jobs} == {"SGD", "SparseFW"}
    assert {job.final for job in jobs} == {True, False}


def test_the_same_command_again_trains_nothing(undisturbed):
    folder, results, _ = undisturbed
    again, messages = run_to_end(command(folder / "tiny.yaml", folder / "sweep", "--workers", "2", "--seeds", "2"))
    assert reproducible(again) == reproducible(results)
    assert "continuing; 8 of 8 jobs are already finished" in messages


def test_ten_kills_of_three_workers_change_nothing(undisturbed, tmp_path):
    """The figures are those of the undisturbed sweep, and every configuration is trained once."""
    url = f"sqlite:///{tmp_path / 'sweep' / 'ledger.db'}"
    process = start(
        command(write_grid(tmp_path), tmp_path / "sweep", "--workers", "3", "--seeds", "2", "--set", "train.epochs=2")
    )
    assert_kills_change_nothing([process], url, undisturbed)


def test_ten_kills_of_workers_on_two_machines_change_nothing(postgres, undisturbed, tmp_path):
    """The ledger is on a server, and the third worker belongs to a process that joined."""
    words = command(write_grid(tmp_path), tmp_path / "first", "--storage", postgres, "--workers", "2", "--seeds", "2")
    first = start(words)
    while not list((tmp_path / "first").glob("*/*/config.yaml")):
        time.sleep(0.05)
    second = start(command(None, tmp_path / "second", "--join", postgres, "--workers", "1"))
    assert_kills_change_nothing([first, second], postgres, undisturbed)


def assert_kills_change_nothing(processes, url, undisturbed):
    chance = random.Random(1)
    killed = kill_workers(processes, 10, lambda: chance.uniform(0.5, 2.5), chance)
    outs, messages = zip(*(ended(process, patience=SWEEP_SECONDS) for process in processes), strict=True)
    assert killed == 10, messages
    assert any("a worker died (SIGKILL): starting another" in text for text in messages)
    for out in outs:
        assert reproducible(json.loads(out)) == reproducible(undisturbed[1])
    assert_every_configuration_once(url)


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGKILL])
def test_the_same_command_continues_a_stopped_sweep(undisturbed, tmp_path, which):
    words = command(write_grid(tmp_path), tmp_path / "sweep", "--workers", "2", "--seeds", "2")
    process = start(words)
    while not list((tmp_path / "sweep").glob("*/*/checkpoints/step-*")):
        time.sleep(0.01)
    team = workers_of(process)
    process.send_signal(which)
    _, messages = ended(process, code=-9 if which == signal.SIGKILL else 130)
    if which != signal.SIGKILL:
        assert f"{which.name}: stopped; the same command continues from here" in messages
    deadline = time.monotonic() + 60
    while any(os.path.exists(f"/proc/{pid}") for pid in team):  # no worker survives
        assert time.monotonic() < deadline
        time.sleep(0.1)
    results, _ = run_to_end(words)
    assert reproducible(results) == reproducible(undisturbed[1])
    assert_every_configuration_once(f"sqlite:///{tmp_path / 'sweep' / 'ledger.db'}")


def test_a_failed_configuration_does_not_stop_the_rest(tmp_path):
    """A learning rate of 1e30 diverges at once."""
    text = GRID.replace("weight_decay: [1e-4, 5e-3]", "lr: [0.1, 1e30]").replace("k: [0.2, 0.3]", "k: 0.2")
    text += "  Broken: {method: {name: sgd}, train: {lr: 1e30}}\n"
    words = command(write_grid(tmp_path, text), tmp_path / "sweep", "--workers", "1", "--seeds", "1")
    results, messages = run_to_end(words, code=1)  # a row has nothing to report
    assert results["rows"]["Broken"].get("test") is None
    assert results["finished"]
    assert results["rows"]["SGD"]["chosen"] == "0000"
    assert "diverged" in results["rows"]["SGD"]["failed"]["0001"]
    assert "SGD 0001: failed: Diverged: by step" in messages
    assert "Traceback" in (tmp_path / "sweep" / "SGD" / "0001" / "error.txt").read_text()
    assert "Traceback" not in messages


def test_another_machine_finishes_the_sweep_of_one_that_hangs(postgres, undisturbed, tmp_path):
    """The machine that joins cannot reach the folder of the first one."""
    words = command(write_grid(tmp_path), tmp_path / "first", "--storage", postgres, "--workers", "1", "--seeds", "2")
    process = start(words)
    while not list((tmp_path / "first").glob("*/*/checkpoints/step-*")):
        time.sleep(0.01)
    (stopped,) = workers_of(process)
    os.kill(stopped, signal.SIGSTOP)  # as if its machine hung: it neither ends nor beats
    process.kill()
    process.wait()
    for pipe in (process.stdout, process.stderr):
        pipe.close()
    shutil.move(tmp_path / "first", tmp_path / "away")
    try:
        results, messages = run_to_end(command(None, tmp_path / "second", "--join", postgres, "--workers", "2"))
    finally:
        os.kill(stopped, signal.SIGKILL)
    assert "cannot be reached from here: starting again" in messages
    assert reproducible(results) == reproducible(undisturbed[1])
    assert_every_configuration_once(postgres)
    joined = Sweep.join(postgres, None, tmp_path / "second")
    assert joined.finished()
    joined.storage.engine.dispose()


def test_configurations_are_sampled_from_a_range(tmp_path):
    text = GRID.replace("k: [0.2, 0.3]", "k: 0.1..0.9")
    results, _ = run_to_end(
        command(
            write_grid(tmp_path, text), tmp_path / "sweep", "--workers", "2", "--seeds", "1", "--sampler", "tpe",
            "--trials", "3", "--rows", "SparseFW",
        )
    )  # fmt: skip
    ks = [trial["settings"]["method.k"] for trial in results["rows"]["SparseFW"]["tried"].values()]
    assert len(set(ks)) == 3
    assert all(0.1 <= k <= 0.9 for k in ks)


def test_trainings_worse_than_the_others_are_pruned(tmp_path):
    """The last has a learning rate of almost 0; the pruner needs five others to compare with."""
    rates = [0.1, 0.11, 0.12, 0.13, 0.14, 1e-9]
    text = GRID.replace("weight_decay: [1e-4, 5e-3]", f"lr: {rates}").replace("epochs: 2", "epochs: 4")
    words = command(write_grid(tmp_path, text), tmp_path / "sweep", "--workers", "1", "--seeds", "1", "--prune")
    results, _ = run_to_end([*words, "--rows", "SGD", "--set", "model.arguments.width=8"])
    row = results["rows"]["SGD"]
    assert (row["done"], row["stopped as hopeless"]) == (5, 1)
    assert "0005" not in row["tried"]
    rows = (tmp_path / "sweep" / "SGD" / "0005" / "metrics.jsonl").read_text().splitlines()
    assert len(rows) < 4
    assert not list((tmp_path / "sweep").glob("*/*/checkpoints"))
    assert len(list((tmp_path / "sweep").glob("*/*/model.safetensors"))) == 1


def test_a_missing_data_set_is_refused_before_the_sweep_begins(tmp_path):
    words = ["filters-cifar10", "--data", str(tmp_path), "--workers", "1", "--out", str(tmp_path / "sweep")]
    _, messages = run_to_end(["-m", "sparsefw", "sweep", *words], code=2)
    assert messages.count(f"error: cifar10: not found in {tmp_path}") == 1
    assert not (tmp_path / "sweep").exists()  # nothing was begun
    assert "Traceback" not in messages
