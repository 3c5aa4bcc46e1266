"""Sweeps as users run them: whole, killed, interrupted, joined from elsewhere, with failures, in a file and on a server."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time

import optuna
import pytest

from sparsefw.sweep.storage import open_storage
from sparsefw.sweep.sweep import Sweep
from sweep.sweeps import GRID, PATIENCE, command, kill_some, swept, workers_of, write_grid
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


def untimed(found: dict) -> dict:
    """What does not depend on the clock or the place."""
    kept = {}
    for row, values in found["rows"].items():
        tried = {job: (one["validation"], one["plain"]) for job, one in values["tried"].items()}
        test = values["test"]
        kept[row] = (tried, values["chosen"], test["dense"], test["plain"], test["removed_refit"], test["parameters"])
    return kept


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A sweep that nothing happened to."""
    folder = tmp_path_factory.mktemp("whole")
    found, said = swept(command(write_grid(folder), folder / "sweep", "--workers", "2", "--seeds", "2"))
    return folder, found, said


def test_a_whole_sweep(whole):
    folder, found, said = whole
    assert found["finished"]
    assert_every_configuration_once(f"sqlite:///{folder / 'sweep' / 'ledger.db'}")
    for row in found["rows"].values():
        values = {job: one["validation"] for job, one in row["tried"].items()}
        assert row["chosen"] == max(values, key=values.get)
        curve = json.loads(
            (folder / "sweep" / "SGD" / "0000" / "curves-validation" / "filters-masked.json").read_text()
        )
        assert curve["split"] == "validation"
    assert json.loads((folder / "sweep" / "results.json").read_text())["rows"].keys() == found["rows"].keys()
    assert "[8/8]" in said


def test_nothing_but_the_chosen_was_measured_on_test_images(whole):
    folder, found, _ = whole
    for row, values in found["rows"].items():
        for run in (folder / "sweep" / row).iterdir():
            chosen = run.name.startswith(values["chosen"])
            assert (run / "curves" / "filters-masked.json").exists() == chosen
            assert (run / "model.safetensors").exists() == chosen


def test_the_same_command_again_has_nothing_to_do(whole):
    folder, found, _ = whole
    again, said = swept(command(folder / "tiny.yaml", folder / "sweep", "--workers", "2", "--seeds", "2"))
    assert untimed(again) == untimed(found)
    assert "going on; 8 of 8 are done already" in said


def test_three_workers_ten_kills(whole, tmp_path):
    """Whichever worker is killed with -9 and whenever: the same figures, every configuration once."""
    url = f"sqlite:///{tmp_path / 'sweep' / 'ledger.db'}"
    process = start(
        command(write_grid(tmp_path), tmp_path / "sweep", "--workers", "3", "--seeds", "2", "--set", "train.epochs=2")
    )
    assert_kills_change_nothing([process], url, whole)


def test_two_machines_ten_kills(postgres, whole, tmp_path):
    """The same on a server, where the third worker has joined from elsewhere."""
    words = command(write_grid(tmp_path), tmp_path / "first", "--storage", postgres, "--workers", "2", "--seeds", "2")
    first = start(words)
    while not list((tmp_path / "first").glob("*/*/config.yaml")):
        time.sleep(0.05)
    second = start(command(None, tmp_path / "second", "--join", postgres, "--workers", "1"))
    assert_kills_change_nothing([first, second], postgres, whole)


def assert_kills_change_nothing(processes, url, whole):
    chance = random.Random(1)
    killed = kill_some(processes, 10, lambda: chance.uniform(0.5, 2.5), chance)
    outs, said = zip(*(ended(process, patience=PATIENCE) for process in processes), strict=True)
    assert killed == 10, said
    assert any("a worker died (SIGKILL): starting another" in text for text in said)
    for out in outs:
        assert untimed(json.loads(out)) == untimed(whole[1])
    assert_every_configuration_once(url)


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGKILL])
def test_stopped_the_same_command_goes_on(whole, tmp_path, which):
    words = command(write_grid(tmp_path), tmp_path / "sweep", "--workers", "2", "--seeds", "2")
    process = start(words)
    while not list((tmp_path / "sweep").glob("*/*/checkpoints/step-*")):
        time.sleep(0.01)
    team = workers_of(process)
    process.send_signal(which)
    _, said = ended(process, code=-9 if which == signal.SIGKILL else 130)
    if which != signal.SIGKILL:
        assert f"{which.name}: stopped; the same command goes on from here" in said
    deadline = time.monotonic() + 60
    while any(os.path.exists(f"/proc/{pid}") for pid in team):  # nobody is left behind
        assert time.monotonic() < deadline
        time.sleep(0.1)
    found, _ = swept(words)
    assert untimed(found) == untimed(whole[1])
    assert_every_configuration_once(f"sqlite:///{tmp_path / 'sweep' / 'ledger.db'}")


def test_a_failed_configuration_does_not_stop_the_rest(tmp_path):
    """A learning rate of 1e30 diverges at once."""
    text = GRID.replace("weight_decay: [1e-4, 5e-3]", "lr: [0.1, 1e30]").replace("k: [0.2, 0.3]", "k: 0.2")
    text += "  Broken: {method: {name: sgd}, train: {lr: 1e30}}\n"
    words = command(write_grid(tmp_path, text), tmp_path / "sweep", "--workers", "1", "--seeds", "1")
    found, said = swept(words, code=1)  # a row has nothing to report
    assert found["rows"]["Broken"].get("test") is None
    assert found["finished"]
    assert found["rows"]["SGD"]["chosen"] == "0000"
    assert "diverged" in found["rows"]["SGD"]["failed"]["0001"]
    assert "SGD 0001: failed: Diverged: by step" in said
    assert "Traceback" in (tmp_path / "sweep" / "SGD" / "0001" / "error.txt").read_text()
    assert "Traceback" not in said


def test_many_machines_share_a_server(postgres, whole, tmp_path):
    """One begins, and is killed; another, which cannot reach its folder, joins, and ends the sweep."""
    words = command(write_grid(tmp_path), tmp_path / "first", "--storage", postgres, "--workers", "1", "--seeds", "2")
    process = start(words)
    while not list((tmp_path / "first").glob("*/*/checkpoints/step-*")):
        time.sleep(0.01)
    (stopped,) = workers_of(process)
    os.kill(stopped, signal.SIGSTOP)  # as if its machine hung: it neither ends nor gives a sign of life
    process.kill()
    process.wait()
    for pipe in (process.stdout, process.stderr):
        pipe.close()
    shutil.move(tmp_path / "first", tmp_path / "away")
    try:
        found, said = swept(command(None, tmp_path / "second", "--join", postgres, "--workers", "2"))
    finally:
        os.kill(stopped, signal.SIGKILL)
    assert "cannot be reached from here: starting again" in said
    assert untimed(found) == untimed(whole[1])
    assert_every_configuration_once(postgres)
    joined = Sweep.join(postgres, None, tmp_path / "second")
    assert joined.finished()
    joined.storage.engine.dispose()


def test_sampled(tmp_path):
    text = GRID.replace("k: [0.2, 0.3]", "k: 0.1..0.9")
    found, _ = swept(
        command(
            write_grid(tmp_path, text), tmp_path / "sweep", "--workers", "2", "--seeds", "1", "--sampler", "tpe",
            "--trials", "3", "--rows", "SparseFW",
        )
    )  # fmt: skip
    ks = [one["settings"]["method.k"] for one in found["rows"]["SparseFW"]["tried"].values()]
    assert len(set(ks)) == 3
    assert all(0.1 <= k <= 0.9 for k in ks)


def test_hopeless_trainings_are_stopped(tmp_path):
    """At a learning rate of nothing, after those that the pruner wants to have seen first."""
    rates = [0.1, 0.11, 0.12, 0.13, 0.14, 1e-9]
    text = GRID.replace("weight_decay: [1e-4, 5e-3]", f"lr: {rates}").replace("epochs: 2", "epochs: 4")
    words = command(write_grid(tmp_path, text), tmp_path / "sweep", "--workers", "1", "--seeds", "1", "--prune")
    found, _ = swept([*words, "--rows", "SGD", "--set", "model.arguments.width=8"])
    row = found["rows"]["SGD"]
    assert (row["done"], row["stopped as hopeless"]) == (5, 1)
    assert "0005" not in row["tried"]
    rows = (tmp_path / "sweep" / "SGD" / "0005" / "metrics.jsonl").read_text().splitlines()
    assert len(rows) < 4
    assert not list((tmp_path / "sweep").glob("*/*/checkpoints"))
    assert len(list((tmp_path / "sweep").glob("*/*/model.safetensors"))) == 1


def test_a_worker_that_finds_no_data_says_so(tmp_path):
    words = ["filters-cifar10", "--data", str(tmp_path), "--workers", "1", "--out", str(tmp_path / "sweep")]
    _, said = swept(["-m", "sparsefw", "sweep", *words], code=2)
    assert said.count(f"error: cifar10: not found in {tmp_path}") == 1
    assert not (tmp_path / "sweep").exists()  # nothing was begun
    assert "Traceback" not in said
