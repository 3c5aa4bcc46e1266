"""Asked to stop, a run stops at once, losing nothing; what must not be started twice is not."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from sparsefw.config_base import ConfigError
from sparsefw.runfolder.read import read_result
from sparsefw.train import Interrupted, RunFolder, fit, load_recipe
from sparsefw.train import run as run_module
from train.harness import (
    assert_same_run,
    checkpoint_steps,
    children,
    command,
    ended,
    is_running,
    reached,
    send_when,
    start,
    trained,
    untimed,
)

SMALL = ["train.epochs=2", "model.arguments.width=4", "data.batch_size=400", "engine.device=cpu"]


def small(*changes: str, **fields):
    """Two epochs of three steps."""
    return load_recipe("digits-resnet-filters", [*SMALL, *changes], **fields)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reference") / "run"
    trained(command("digits-resnet-rank", folder))
    return folder


@pytest.mark.parametrize("which", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_asked_to_stop_it_writes_a_checkpoint_and_the_same_command_goes_on(reference, tmp_path, which):
    """No checkpoint is due within a minute: that there is one is due to the signal."""
    folder = tmp_path / "run"
    words = command("digits-resnet-rank", folder, "engine.checkpoint_seconds=60")
    process = start(words)
    assert send_when(process, lambda: len(untimed(folder)) == 1, which)
    _, said = ended(process, code=130)
    (step,) = checkpoint_steps(folder)
    assert 19 <= step < 57
    assert said.splitlines()[-1] == f"{which.name}: stopped at step {step} of 57; the same command resumes from there"
    assert f"resuming from step {step} of 57" in trained(words)
    assert_same_run(folder, reference)


def asking(monkeypatch, at: int, times: int = 1) -> None:
    """This process is asked to stop right after step `at`."""
    stepped = run_module.Recorder._checkpoint_if_due

    def first_ask(self, t):
        for _ in range(times if t.step == at else 0):
            os.kill(os.getpid(), signal.SIGTERM)
        stepped(self, t)

    monkeypatch.setattr(run_module.Recorder, "_checkpoint_if_due", first_ask)


@pytest.mark.parametrize("step", range(1, 7))
def test_wherever_it_stops_the_message_the_checkpoint_and_the_end_agree(tmp_path, monkeypatch, step):
    """Also at the end of an epoch, and of the last one."""
    fit(small(), tmp_path / "whole", quiet=True)
    with monkeypatch.context() as patch:
        asking(patch, at=step)
        with pytest.raises(Interrupted, match=f"SIGTERM: stopped at step {step} of 6"):
            fit(small(), tmp_path / "run", quiet=True)
    assert checkpoint_steps(tmp_path / "run") == [step]
    fit(small(), tmp_path / "run", quiet=True)
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_asked_twice_it_does_not_wait(tmp_path, monkeypatch):
    asking(monkeypatch, at=2, times=2)
    with pytest.raises(KeyboardInterrupt):
        fit(small(), tmp_path / "run", quiet=True)


def test_afterwards_signals_mean_what_they_meant_before(tmp_path):
    before = [signal.getsignal(which) for which in (signal.SIGINT, signal.SIGTERM)]
    fit(small(), tmp_path / "run", quiet=True)
    assert [signal.getsignal(which) for which in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_run_may_be_started_from_another_thread(tmp_path):
    """Python lets only the main thread hear signals."""
    found: list = []
    thread = threading.Thread(target=lambda: found.append(fit(small(), tmp_path / "run", quiet=True)))
    thread.start()
    thread.join()
    assert found[0]["steps"] == 6


def test_a_second_process_in_the_same_folder_is_refused_in_one_line(tmp_path):
    folder = tmp_path / "run"
    words = command("digits-resnet-rank", folder, epochs=500)
    first = start(words)
    try:
        while not reached(folder, 1)():
            assert first.poll() is None
            time.sleep(0.01)
        _, said = ended(start(words), code=2)
        assert said.count("\n") == 1
        assert "is being trained into by another process" in said
        assert first.poll() is None
    finally:
        first.kill()
        ended(first, code=None)
    with RunFolder(folder).locked():  # the lock went with its process
        pass


@pytest.mark.slow
def test_the_readers_of_a_killed_run_do_not_keep_its_folder(tmp_path):
    """They live on for seconds; the same command must go on at once."""
    folder = tmp_path / "run"
    process = start(command("digits-resnet-sgd", folder, "data.resident=false", "engine.workers=2", epochs=500))
    readers: list[int] = []

    def moment() -> bool:
        if reached(folder, 1)():
            readers.extend(children(process.pid))
        for reader in readers:
            os.kill(reader, signal.SIGSTOP)  # so that they do not notice that it is gone
        return bool(readers)

    try:
        assert send_when(process, moment)
        process.wait()
        assert all(is_running(reader) for reader in readers)
        with RunFolder(folder).locked():
            pass
    finally:
        for reader in readers:
            os.kill(reader, signal.SIGKILL)
        ended(process, code=None)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("train.lr=0.2", "train.lr=0.1, this one has 0.2"),
        ("data.batch_size=200", "data.batch_size=400"),
        ("method.k=0.5", "method.k=0.3"),
        ("method.kind=weights", "method.kind='filters'"),
        ("model.arguments.width=8", "model.arguments.width=4"),
        ("train.schedule.warmup=1", "train.schedule.warmup=0.0"),
        ("seed=1", "seed=0"),
    ],
)
def test_another_setting_in_the_same_folder_is_refused_and_named(tmp_path, change, named):
    fit(small(), tmp_path, quiet=True)
    before = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}
    with pytest.raises(ConfigError) as error:
        fit(small(change), tmp_path, quiet=True)
    assert named in str(error.value)
    assert "\n" not in str(error.value)
    assert {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)} == before


@pytest.mark.parametrize("change", ["engine.checkpoint_seconds=7", "curve.at=[0.5]", "track=[tensorboard]"])
def test_what_does_not_change_the_training_may_be_another(tmp_path, change):
    first = fit(small(), tmp_path, quiet=True)
    assert fit(small(change), tmp_path, quiet=True) == first


def test_a_finished_run_is_not_trained_again(tmp_path, monkeypatch):
    first = fit(small(), tmp_path, quiet=True)
    monkeypatch.setattr(run_module, "prepare", lambda *_: pytest.fail("it was prepared again"))
    assert fit(small(), tmp_path, quiet=True) == read_result(tmp_path).to_json() == first


def test_killed_between_the_result_and_the_end_the_next_start_cleans_up(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:

        def kill(*_):
            raise KeyboardInterrupt

        patch.setattr(RunFolder, "forget_checkpoints", kill)
        with pytest.raises(KeyboardInterrupt):
            fit(small("engine.checkpoint_seconds=0"), tmp_path, quiet=True)
    assert checkpoint_steps(tmp_path) == [4, 5]
    assert fit(small(), tmp_path, quiet=True)["steps"] == 6
    assert not (tmp_path / "checkpoints").exists()
