"""Run folders: who may use one, what is in it, and what is left of a start that failed."""

from __future__ import annotations

import json
import multiprocessing
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fuzz.memory import at_most
from sparsefw.config_base import ConfigError
from sparsefw.data.errors import DataError
from sparsefw.runfolder.read import read_epochs
from sparsefw.train import RunFolder, fit, load_recipe
from vision import require_vision

SMALL = ["train.epochs=2", "model.arguments.width=4", "data.batch_size=400", "engine.device=cpu"]


def small(*changes: str):
    return load_recipe("digits-resnet-filters", [*SMALL, *changes])


def test_a_finished_folder_holds_what_it_is_documented_to_hold(tmp_path):
    found = fit(small(), tmp_path / "a" / "run", quiet=True)
    folder = RunFolder(tmp_path / "a" / "run")
    assert folder.config == small()
    assert folder.result.to_json() == found
    assert [epoch.epoch for epoch in read_epochs(folder.path)] == [1, 2]
    environment = json.loads((folder.path / "environment.json").read_text())
    assert {"versions", "hardware", "date", "code"} <= set(environment)
    assert set(environment["code"]) >= {"version", "sha256"}


def test_the_saved_network_has_the_accuracy_that_the_result_states(tmp_path):
    found = fit(small("train.epochs=10", "data.batch_size=64"), tmp_path / "run", quiet=True)
    model, about = RunFolder(tmp_path / "run").load_model()
    assert (about.classes, about.task, about.shape) == (10, "classification", (1, 8, 8))
    from sparsefw.data.digits import load_digits

    digits = load_digits("test")
    with torch.no_grad():
        right = (model(digits.images).argmax(1) == digits.labels).float().mean()
    assert 100 * float(right) == pytest.approx(found["test"]["accuracy"], abs=0.3)  # one image, by rounding
    assert found["test"]["accuracy"] > 30


@pytest.mark.parametrize("name", ["notes.txt", "model.safetensors", ".hidden"])
def test_a_folder_with_other_files_is_not_written_to(tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(ConfigError, match="holds files, but no run"):
        fit(small(), tmp_path, quiet=True)
    assert sorted(set(os.listdir(tmp_path)) - {".lock"}) == [name]
    assert (tmp_path / name).read_text() == "mine"


def test_what_a_kill_left_of_the_very_first_file_is_no_obstacle_and_is_swept(tmp_path):
    (tmp_path / ".config.yaml.0123abcd.new").mkdir()
    (tmp_path / ".config.yaml.0123abcd.new" / ".sparsefw-lock").touch()
    (tmp_path / ".config.yaml.0123abcd.new" / "config.yaml").write_text("na")
    fit(small(), tmp_path, quiet=True)
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".new")]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        (("data.name=cifar10", "model.name=resnet18"), DataError),
        (("data.batch_size=5000",), DataError),
        (("model.arguments.depth=3",), ValueError),
        (("model.name=no_such_net",), ValueError),
        (("model.name=train.networks:linear_only", "method.kind=heads"), ValueError),
        (("engine.device=cuda:99",), ConfigError),
        (("model.weights=nowhere.pt",), (ValueError, OSError)),
    ],
)
def test_a_start_that_fails_leaves_no_folder_behind(tmp_path, monkeypatch, changes, error):
    monkeypatch.setenv("SPARSEFW_DATA", str(tmp_path))
    with pytest.raises(error):
        fit(small(*changes), tmp_path / "run", trust=True, quiet=True)
    assert os.listdir(tmp_path) == []


def test_a_file_where_the_folder_should_be_is_named(tmp_path):
    (tmp_path / "run").write_text("mine")
    with pytest.raises(ConfigError, match="is a file"):
        fit(small(), tmp_path / "run", quiet=True)


def test_a_folder_that_was_there_before_a_failed_start_keeps_what_it_had(tmp_path):
    fit(small(), tmp_path, quiet=True)
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(ConfigError), RunFolder(tmp_path).locked():
        raise ConfigError("anything")
    assert sorted(os.listdir(tmp_path)) == before


def hold(path: Path, rounds: int, tallies) -> None:
    """Enter and leave again and again, counting how often another was inside at the same time."""
    inside, entered, both = tallies
    for _ in range(rounds):
        try:
            with RunFolder(path).locked():
                with inside.get_lock():
                    inside.value += 1
                    entered.value += 1
                    both.value += inside.value > 1
                with inside.get_lock():
                    inside.value -= 1
        except ConfigError:
            pass


def test_processes_that_come_and_go_are_never_inside_together_nor_trip_over_a_vanishing_folder(tmp_path):
    """Every one that leaves an empty folder removes it, while others are about to enter."""
    context = multiprocessing.get_context("fork")
    tallies = [context.Value("i", 0) for _ in range(3)]
    processes = [context.Process(target=hold, args=(tmp_path / "run", 300, tallies)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    _, entered, both = tallies
    assert entered.value > 0
    assert both.value == 0
    assert not (tmp_path / "run").exists()


def test_something_that_is_no_run_says_so(tmp_path):
    with pytest.raises(ConfigError, match=r"is not a run folder: it has no config\.yaml"):
        _ = RunFolder(tmp_path).config
    with pytest.raises(ConfigError, match="has no trained model yet"):
        RunFolder(tmp_path).load_model()
    assert RunFolder(tmp_path).result is None


def test_a_damaged_network_is_named(tmp_path):
    fit(small("train.epochs=1"), tmp_path, quiet=True)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(ConfigError, match=r"model\.safetensors is damaged"):
        RunFolder(tmp_path).load_model()


def test_code_of_the_users_own_is_imported_on_demand_only(tmp_path):
    fit(small("model.name=train.networks:group_norm", "train.epochs=1"), tmp_path, trust=True, quiet=True)
    with pytest.raises(ValueError, match="--trust"):
        RunFolder(tmp_path).load_model()
    assert RunFolder(tmp_path).load_model(trust=True)[0][0].weight.shape[0] == 4


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("timm:resnet18", {"global_pool": "__class__"}, ""),
        ("torchvision:vgg16", {"num_classes": 25_000}, "its weights are not those of the network that it names"),
    ],
)
def test_a_header_that_names_another_network_is_refused_in_one_line(name, arguments, message, tmp_path, monkeypatch):
    require_vision(name)
    fit(small("train.epochs=1"), tmp_path, quiet=True)
    folder = RunFolder(tmp_path)
    record = replace(folder.check_model(), name=name, arguments=arguments)
    monkeypatch.setattr(RunFolder, "check_model", lambda self: record)
    with at_most(1 << 28), pytest.raises(ConfigError, match=rf"model\.safetensors: .*{message}") as error:
        folder.load_model()
    assert "\n" not in str(error.value)
