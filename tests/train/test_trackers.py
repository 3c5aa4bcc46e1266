"""Curves in TensorBoard, Weights & Biases and MLflow are the lines of metrics.jsonl, also after a kill."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest

from sparsefw.config_base import ConfigError
from sparsefw.runfolder.read import read_epochs
from sparsefw.runfolder.schema import ConstraintFigures, EpochFigures, EpochRecord
from sparsefw.train import fit, load_recipe
from sparsefw.train.trackers import TRACKERS, flat_metrics
from train.harness import command, ended, send_when, start, trained

NEEDS = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow"}


def needs(name: str):
    missing = importlib.util.find_spec(NEEDS[name]) is None
    return pytest.mark.skipif(missing, reason=f"the package {NEEDS[name]} is not installed")


def interrupted_run(folder: Path, name: str, **environment: str) -> list[dict[str, float]]:
    """A run that was killed after its first epoch and started again; the rows of its metrics, flat."""
    words = command("digits-resnet-filters", folder, f"track=[{name}]")
    process = start(words, **environment)
    assert send_when(process, lambda: len(read_epochs(folder)) == 1)
    ended(process, code=None)
    trained(words, **environment)
    return [flat_metrics(epoch) for epoch in read_epochs(folder)]


@pytest.mark.slow
@needs("tensorboard")
def test_tensorboard_reads_back_every_epoch_once(tmp_path):
    rows = interrupted_run(tmp_path / "run", "tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    for name in ("train/loss", "validation/accuracy", "lr"):
        found = [(event.step, event.value) for event in events.Scalars(name)]
        assert found == [(row["step"], pytest.approx(row[name], rel=1e-6)) for row in rows]


READ_BACK = """
import json, sys
from mlflow.tracking import MlflowClient
client = MlflowClient(sys.argv[1])
runs = client.search_runs([client.get_experiment_by_name("sparsefw").experiment_id])
history = [[(m.step, m.value) for m in client.get_metric_history(r.info.run_id, "train/loss")] for r in runs]
print(json.dumps([[r.info.status, r.data.params, h] for r, h in zip(runs, history)]))
"""


@pytest.mark.slow
@needs("mlflow")
@pytest.mark.parametrize("where", ["in the run folder", "elsewhere"])
def test_mlflow_has_one_run_with_the_configuration_and_every_epoch(tmp_path, where):
    uri, environment = f"sqlite:///{tmp_path / 'run' / 'mlflow.db'}", {}
    if where == "elsewhere":
        uri = f"file://{tmp_path}/elsewhere"
        environment = {"MLFLOW_TRACKING_URI": uri, "MLFLOW_ALLOW_FILE_STORE": "true"}
    elif importlib.util.find_spec("sqlalchemy") is None:
        pytest.skip("the package sqlalchemy is not installed")
    rows = interrupted_run(tmp_path / "run", "mlflow", **environment)
    ((status, settings, history),) = json.loads(ended(start(["-c", READ_BACK, uri], **environment))[0])
    assert status == "FINISHED"
    assert settings["method/kind"] == "filters"
    expected = {row["step"]: pytest.approx(row["train/loss"]) for row in rows}
    assert dict(history) == expected


@pytest.mark.slow
@needs("wandb")
def test_wandb_works_without_a_network(tmp_path):
    """Offline it writes into the run folder what can be sent later; a resume has the same id."""
    folder = tmp_path / "run"
    interrupted_run(folder, "wandb", WANDB_MODE="offline", WANDB_SILENT="true")
    runs = [path.name for path in (folder / "wandb").glob("offline-run-*")]
    assert runs
    (identity,) = {name.split("-", 3)[3] for name in runs}
    assert identity.startswith("run-")
    assert [epoch.epoch for epoch in read_epochs(folder)] == [1, 2, 3]


def test_what_mlflow_needs_for_its_file_is_asked_for_too(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    config = load_recipe("digits-resnet-sgd", ["track=[mlflow]", "engine.device=cpu"])
    with pytest.raises(ConfigError, match="track=mlflow needs the package sqlalchemy"):
        fit(config, tmp_path / "run", quiet=True)


@pytest.mark.parametrize("name", TRACKERS)
def test_a_missing_package_is_named_in_one_line_before_anything_is_written(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, TRACKERS[name].module, None)
    config = load_recipe("digits-resnet-sgd", [f"track=[{name}]", "engine.device=cpu"])
    with pytest.raises(ConfigError) as error:
        fit(config, tmp_path / "run", quiet=True)
    assert f"track={name} needs the package" in str(error.value)
    assert f"pip install 'sparsefw[{name}]'" in str(error.value)
    assert "\n" not in str(error.value)
    assert os.listdir(tmp_path) == []


def test_nested_figures_get_names_with_slashes_and_what_is_no_number_or_of_one_layer_is_left_out():
    whole, layer = ConstraintFigures(renewed=1.5), ConstraintFigures(renewed=2.0)
    figures = EpochFigures({"loss": 0.5}, None, whole, layers={"conv1.weight + bn1.weight": layer})
    values = flat_metrics(EpochRecord(1, None, None, None, 0.1, figures))
    assert values == {"epoch": 1, "lr": 0.1, "train/loss": 0.5, "constraint/renewed": 1.5}
