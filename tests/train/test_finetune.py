"""Fine-tuning over sizes: the configuration it makes of a run, what it does to the network, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from sparsefw.cli import app
from sparsefw.config_base import ConfigError
from sparsefw.train import fit, load_recipe
from sparsefw.train.evaluate_run import TrainedRun
from sparsefw.train.finetune import finetuning

CHANGES = ["model.arguments.width=8", "data.validation=0"]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "trained"
    fit(load_recipe("digits-resnet-sgd", [*CHANGES, "train.epochs=10", "train.rest_lr=0.2"]), folder, quiet=True)
    return folder


def test_it_continues_the_run_over_the_sizes_of_its_kind(run):
    original, config = TrainedRun.open(run).config, finetuning(run, 4)
    assert config.model.weights.file == run.resolve() / "model.safetensors"
    assert (config.data, config.method, config.seed) == (original.data, original.method, original.seed)
    assert (config.train.epochs, config.train.lr, config.train.rest_lr) == (4, 0.05, 0.1)
    assert (config.train.momentum, config.train.weight_decay) == (0.9, 5e-4)
    assert config.sizes.kind == "filters"
    assert config.label == "SGD over sizes, fine-tuned"
    assert config.name == "digits-resnet-sgd-finetuned"


def test_it_takes_another_kind_and_other_settings(run):
    config = finetuning(run, 4, "rank", ["train.lr=0.01", "sizes.share=0.25", "method.name=sparsefw"])
    assert (config.train.lr, config.sizes.kind, config.sizes.share) == (0.01, "rank", 0.25)
    assert config.method.name == "sparsefw"


def test_after_a_few_epochs_small_networks_hold(run, tmp_path):
    """Without 60 % of its filters, plain; the dense network is as good as before."""
    fit(finetuning(run, 8), tmp_path / "tuned", quiet=True)
    curves = [
        TrainedRun.open(folder).curve("filters", [0.6], refit=False, calibration=1024, progress=False)
        for folder in (run, tmp_path / "tuned")
    ]
    before, after = (curve.points[0].plain for curve in curves)
    assert after > before + 20, (before, after)
    assert curves[1].dense > curves[0].dense - 2


def test_the_command_trains_and_names_the_next_one(run, tmp_path):
    out = tmp_path / "tuned"
    done = CliRunner().invoke(app, ["finetune", str(run), "--epochs", "1", "--out", str(out), "--quiet"])
    assert done.exit_code == 0, done.stderr
    assert f"sparsefw curve {out}" in done.stdout
    shown = CliRunner().invoke(app, ["finetune", str(run), "--set", "sizes.between=[0.2,0.8]", "--show"])
    assert "between:" in shown.stdout
    assert not run.with_name("trained-finetuned").exists()


@pytest.mark.parametrize(
    ("epochs", "kind", "changes", "message"),
    [
        (0, None, [], "epochs=0: must be at least 1"),
        (1, "colours", [], "unknown kind 'colours'"),
        (1, None, ["sizes.share=2"], "sizes.share=2"),
        (1, None, ["sizes=null"], "sizes=null: fine-tuning is over sizes"),
        (1, None, ["method.name=sam"], "passes 2 times"),
    ],
)
def test_what_it_refuses(run, epochs, kind, changes, message):
    with pytest.raises(ConfigError) as caught:
        finetuning(run, epochs, kind, changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_trained_network(tmp_path, run):
    with pytest.raises(ConfigError, match="is not a run folder"):
        finetuning(tmp_path, 1)
    config = (run / "config.yaml").read_text()
    (tmp_path / "config.yaml").write_text(config)
    with pytest.raises(ConfigError, match="has no trained model yet; `sparsefw train` again finishes"):
        finetuning(tmp_path, 1)
