"""A checkpoint and a network belong to one run: those that were damaged, or belong to another run, are refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sparsefw.cli import app
from sparsefw.config_base import ConfigError
from sparsefw.errors import Interrupted
from sparsefw.runfolder import read_run
from sparsefw.runfolder.identity import identity_of
from sparsefw.runfolder.schema import ConfigRecord
from sparsefw.train import RunFolder, fit, load_recipe
from sparsefw.train.evaluate_run import TrainedRun
from sparsefw.train.finetune import finetuning
from sparsefw.train.retrain import retrain

SMALL = ("model.arguments.width=4", "data.batch_size=400", "train.epochs=2", "engine.device=cpu")


def small(*changes: str, seed: int = 0):
    return load_recipe("digits-resnet-filters", [*SMALL, *changes], seed=seed)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "finished"
    fit(small(), folder, quiet=True)
    return folder


@pytest.fixture(scope="module")
def of_another_seed(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "other"
    fit(small(seed=1), folder, quiet=True)
    return folder


def copied(folder: Path, to: Path) -> Path:
    shutil.copytree(folder, to)
    return to


def flip(path: Path, where: float) -> None:
    content = bytearray(path.read_bytes())
    content[int(len(content) * where)] ^= 1 << (len(content) % 8)
    path.write_bytes(content)


def stopped(folder: Path, *changes: str, seed: int = 0) -> Path:
    """Train for an epoch, with a checkpoint after every step."""

    def stop(_):
        raise Interrupted("after an epoch")

    with pytest.raises(Interrupted):
        fit(small("engine.checkpoint_seconds=0", *changes, seed=seed), folder, quiet=True, judge=stop)
    return folder


READERS: dict[str, Callable[[Path, Path], object]] = {
    "curve and compress": lambda run, out: TrainedRun.open(run),
    "finetune": lambda run, out: finetuning(run, 1),
    "retrain": lambda run, out: retrain(run, out, weights=0.5, epochs=1, quiet=True),
    "train from its weights": lambda run, out: fit(
        small(f"model.weights.file={run / 'model.safetensors'}"), out, quiet=True
    ),
    "train again": lambda run, out: fit(small(), run, quiet=True),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_network_that_was_damaged_or_exchanged_is_refused_wherever_it_is_read(
    finished, of_another_seed, tmp_path, reader
):
    read = READERS[reader]
    run = copied(finished, tmp_path / "run")
    flip(run / "model.safetensors", 0.5)
    with pytest.raises(ConfigError, match=r"model\.safetensors is damaged, or belongs to another run") as error:
        read(run, tmp_path / "out")
    assert "\n" not in str(error.value)
    shutil.copy(of_another_seed / "model.safetensors", run)
    with pytest.raises(ConfigError, match=r"model\.safetensors is damaged, or belongs to another run"):
        read(run, tmp_path / "out")
    shutil.copy(of_another_seed / "result.json", run)
    with pytest.raises(ConfigError, match=r"model\.safetensors belongs to another run"):
        read(run, tmp_path / "out")
    (run / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"model\.safetensors is missing"):
        read(run, tmp_path / "out")
    (run / "result.json").unlink()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("where", [0.0, 0.01, 0.1, 0.3, 0.7, 0.9, 0.9999])
def test_one_flipped_bit_anywhere_in_a_network_is_noticed(finished, tmp_path, where):
    run = copied(finished, tmp_path / "run")
    flip(run / "model.safetensors", where)
    with pytest.raises(ConfigError, match="is damaged"):
        RunFolder(run).load_model()


def test_a_network_without_a_result_is_not_read_and_the_training_finishes(tmp_path):
    """Killed between the two files: nobody measured the network, so that nothing says which one it is."""
    run = stopped(tmp_path / "run")
    whole = copied(run, tmp_path / "whole")
    fit(small(), whole, quiet=True)
    shutil.copy(whole / "model.safetensors", run)
    with pytest.raises(ConfigError, match="has no trained model yet; `sparsefw train` again finishes its training"):
        RunFolder(run).load_model()
    fit(small(), run, quiet=True)
    assert (run / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_on_the_command_line_a_damaged_run_is_one_line_and_exit_code_2(finished, tmp_path):
    run = copied(finished, tmp_path / "a run")
    flip(run / "model.safetensors", 0.5)
    sets = [word for change in SMALL for word in ("--set", change)]
    for words in (["train", "digits-resnet-filters", *sets, "--out"], ["curve"], ["compress", "--filters", "0.5"]):
        done = CliRunner().invoke(app, [*words, str(run)])
        assert done.exit_code == 2
        assert done.stderr.count("\n") == 1
        assert f"remove '{run}' and train again" in done.stderr


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    run = stopped(tmp_path / "run")
    for name, changes, seed in (("seed", (), 1), ("rate", ("train.lr=0.05",), 0)):
        other = stopped(tmp_path / name, *changes, seed=seed)
        shutil.rmtree(run / "checkpoints")
        shutil.copytree(other / "checkpoints", run / "checkpoints")
        with pytest.raises(ConfigError, match=r"step-\S+ belongs to another run") as error:
            fit(small(), run, quiet=True)
        assert "\n" not in str(error.value)
    assert not (run / "result.json").exists()


@pytest.mark.parametrize("left", ["", '{"epoch": 1, "step": 3', '{"epoch": 2, "step": 6}\n'])
def test_a_run_whose_figures_of_an_epoch_are_lost_is_not_resumed(tmp_path, left):
    """It would end without them."""
    run = tmp_path / "run"
    ended = []

    def stop(_):
        ended.append("an epoch")
        if len(ended) == 2:
            raise Interrupted("after two epochs")

    with pytest.raises(Interrupted):
        fit(small("engine.checkpoint_seconds=0"), run, quiet=True, judge=stop)
    (run / "metrics.jsonl").write_text(left)
    with pytest.raises(ConfigError, match=r"metrics\.jsonl is damaged: it has no whole line of epoch 1") as error:
        fit(small(), run, quiet=True)
    assert "\n" not in str(error.value)
    assert (run / "metrics.jsonl").read_text() == left


def test_no_curve_of_a_damaged_run_is_measured(finished, tmp_path):
    run = copied(finished, tmp_path / "run")
    flip(run / "run.json", 0.3)
    done = CliRunner().invoke(app, ["curve", str(run), "--at", "0.5", "--quiet"])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "run.json" in done.stderr
    assert not (run / "curves").exists()


def test_a_training_that_begins_again_leaves_the_curves_of_its_former_network_out(finished, tmp_path):
    run = copied(finished, tmp_path / "run")
    assert CliRunner().invoke(app, ["curve", str(run), "--at", "0.5", "--quiet"]).exit_code == 0
    assert [len(read_run(run).curves), read_run(run).problems] == [1, ()]
    (run / "result.json").unlink()
    fit(small("engine.precision=bf16"), run, quiet=True)
    again = read_run(run)
    named = "filters-removed.json is left out: it was measured on a network that result.json does not name"
    assert (again.curves, again.problems) == ((), (named,))
    assert again.spectra.layers


def test_figures_of_another_seed_are_left_out_of_reports(finished, of_another_seed, tmp_path):
    run = copied(finished, tmp_path / "run")
    for name in ("result.json", "metrics.jsonl", "spectra.json"):
        shutil.copy(of_another_seed / name, run)
    mixed = read_run(run)
    assert (mixed.result, mixed.epochs, mixed.spectra.layers) == (None, (), {})
    assert [problem.partition(" is left out")[0] for problem in mixed.problems] == [
        "result.json",
        "metrics.jsonl: 2 lines are left out: they belong to another run",
        "spectra.json",
    ]


def test_a_run_resumes_with_the_changes_that_are_allowed(tmp_path):
    run = stopped(tmp_path / "run")
    changes = ("engine.checkpoint_seconds=7", "engine.workers=1", "curve.at=[0.5]", "track=[tensorboard]")
    fit(small(*changes), run, quiet=True)
    assert TrainedRun.open(run).config.curve.at == (0.5,)


def test_the_identity_is_that_of_the_settings_that_may_not_change():
    def identity(*changes: str, seed: int = 0) -> str:
        return identity_of(ConfigRecord(small(*changes, seed=seed).plain()))

    same = [identity(change) for change in ("engine.device=auto", "track=[wandb]", "curve.calibration=7")]
    assert set(same) == {identity()}
    others = ("engine.accumulate=2", "train.lr=0.3", "method.k=0.45", "data.split_seed=1", "model.arguments.width=5")
    assert len({identity(), identity(seed=1), *map(identity, others)}) == 2 + len(others)
