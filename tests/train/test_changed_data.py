"""The data of a run: others are refused when it resumes and when its network is evaluated, unless a user accepts them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from data.dataset_writers import encoded, picture, put
from sparsefw.cli import app
from sparsefw.config_base import ConfigError
from sparsefw.errors import Interrupted
from sparsefw.runfolder import read_run
from sparsefw.runfolder.read import read_data
from sparsefw.train import fit, load_recipe
from sparsefw.train.evaluate_run import TrainedRun

RECIPE = """
data: {name: folder, batch_size: 4, validation: 0.25, size: [8, 8]}
model: {name: resnet18, arguments: {width: 4, stem: cifar}}
method: {name: sparsefw, kind: filters, k: 0.5}
train: {epochs: 2, lr: 0.1}
engine: {workers: 0, device: cpu, checkpoint_seconds: 0}
curve: {at: [0.5], calibration: 4}
"""
CHANGED = "the train part has 15 images instead of 16"


@pytest.fixture
def data(tmp_path) -> Path:
    for part in ("train", "test"):
        for i in range(16):
            put(tmp_path / "data" / part / "ab"[i % 2] / f"{i}.png", encoded(picture(i, i % 2, (8, 8))))
    return tmp_path / "data"


@pytest.fixture
def config(tmp_path):
    (tmp_path / "own.yaml").write_text(RECIPE)
    return load_recipe(str(tmp_path / "own.yaml"))


def stop(_):
    raise Interrupted("after an epoch")


def change(data: Path) -> None:
    (data / "train" / "a" / "0.png").unlink()


def test_a_run_does_not_resume_with_other_data_unless_that_is_accepted_and_then_it_is_recorded(tmp_path, data, config):
    run = tmp_path / "run"
    with pytest.raises(Interrupted):
        fit(config, run, data, quiet=True, judge=stop)
    began = read_data(run)
    environment = (run / "environment.json").read_text()
    change(data)
    with pytest.raises(ConfigError, match=f"{CHANGED}; give the data of the training by --data, or add") as error:
        fit(config, run, data, quiet=True)
    assert "\n" not in str(error.value)
    assert read_data(run) == began
    assert (run / "environment.json").read_text() == environment
    with pytest.raises(Interrupted):
        fit(config, run, data, quiet=True, judge=stop, data_changed=True)
    fit(config, run, data, quiet=True)  # accepted once
    record = read_data(run)
    assert [(item.what, item.step) for item in record.changes] == [(CHANGED, 2)]
    assert record.fingerprint["train"]["images"] == 15
    assert f"other data were accepted from step 2 on: {CHANGED}" in read_run(run).problems
    TrainedRun.open(run)


def test_the_same_data_in_another_place_are_the_same(tmp_path, data, config):
    run = tmp_path / "run"
    with pytest.raises(Interrupted):
        fit(config, run, data, quiet=True, judge=stop)
    shutil.move(data, tmp_path / "elsewhere")
    fit(config, run, tmp_path / "elsewhere", quiet=True)
    assert read_data(run).changes == ()


def test_a_training_that_starts_again_may_have_other_data(tmp_path, data, config):
    run = tmp_path / "run"
    with pytest.raises(Interrupted):
        fit(config, run, data, quiet=True, judge=stop)
    shutil.rmtree(run / "checkpoints")
    change(data)
    fit(config, run, data, quiet=True)
    assert read_data(run).changes == ()
    assert read_data(run).fingerprint["train"]["images"] == 15


@pytest.mark.parametrize("words", [["curve"], ["compress", "--filters", "0.5"]], ids=["curve", "compress"])
def test_the_command_line_refuses_other_data_in_one_line(tmp_path, data, config, words):
    run = tmp_path / "run"
    fit(config, run, data, quiet=True)
    whole = read_data(run)
    words = [words[0], str(run), *words[1:], "--quiet"]
    change(data)
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 1
    assert f"{run}: {CHANGED}; give the data of the training by --data" in done.stderr
    for _ in range(2):
        done = CliRunner().invoke(app, [*words, "--data-changed"])
        assert done.exit_code == 0, done.stderr
    assert read_data(run).fingerprint == whole.fingerprint  # the training has not seen the others
    assert [str(item) for item in read_data(run).changes] == [f"other data were accepted after the training: {CHANGED}"]
    put(data / "train" / "a" / "0.png", encoded(picture(0, 0, (8, 8))))
    assert CliRunner().invoke(app, words).exit_code == 0


def test_data_of_other_classes_are_refused_whatever_is_accepted(tmp_path, data, config):
    run = tmp_path / "run"
    with pytest.raises(Interrupted):
        fit(config, run, data, quiet=True, judge=stop)
    put(data / "train" / "c" / "0.png", encoded(picture(0, 0, (8, 8))))
    with pytest.raises(ConfigError, match="its network has 2 classes, the data have 3"):
        fit(config, run, data, quiet=True, data_changed=True)


def test_a_run_that_lost_its_record_of_data_says_so(tmp_path, data, config):
    run = tmp_path / "run"
    fit(config, run, data, quiet=True)
    (run / "data.json").unlink()
    with pytest.raises(ConfigError, match=r"data\.json, which describes its data, is missing"):
        TrainedRun.open(run)
    TrainedRun.open(run, data_changed=True)
    assert len(json.loads((run / "data.json").read_text())["changes"]) == 1
