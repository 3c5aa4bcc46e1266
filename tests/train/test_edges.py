"""Trainings at the edge: one step, one epoch, no validation images, frozen layers, losses that explode, engines that change."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from safetensors.torch import load_file

from sparsefw.compression import recalibrate
from sparsefw.config_base import ConfigError
from sparsefw.optim.nonfinite import NonFiniteGradientError
from sparsefw.runfolder.read import read_epochs
from sparsefw.train import RunFolder, fit, load_recipe
from sparsefw.train.display import Display
from sparsefw.train.engine import engine_for
from sparsefw.train.loop import Clock, evaluated_model
from sparsefw.train.run import prepare
from train.harness import command, ended, start
from train.networks import frozen

OWN = "model.name=train.networks:{}"


def small(*changes: str, variant: str = "filters"):
    fixed = ["train.epochs=2", "model.arguments.width=4", "data.batch_size=400", "engine.device=cpu"]
    return load_recipe(f"digits-resnet-{variant}", [*fixed, *changes])


def rows(folder) -> list[dict]:
    return [epoch.to_json() for epoch in read_epochs(folder)]


def prepared(*changes: str, variant: str = "filters"):
    return prepare(small(*changes, variant=variant), None, Display("", quiet=True))


@pytest.mark.parametrize(
    ("change", "steps", "epochs"),
    [
        ("train.epochs=1", 3, 1),
        ("data.batch_size=1260", 2, 2),  # all training images in one step
        ("data.batch_size=1259", 2, 2),
        ("data.batch_size=631", 2, 2),
    ],
)
def test_the_shortest_trainings_have_all_their_steps_and_rows(tmp_path, change, steps, epochs):
    assert fit(small(change, "engine.checkpoint_seconds=0"), tmp_path, quiet=True)["steps"] == steps
    assert [(row["epoch"], row["step"]) for row in rows(tmp_path)] == [
        (i + 1, (i + 1) * steps // epochs) for i in range(epochs)
    ]


@pytest.mark.parametrize(("every", "evaluated"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (5, [5]), (50, [5])])
def test_the_last_epoch_is_always_evaluated_whatever_is_between(tmp_path, every, evaluated):
    found = fit(small("train.epochs=5", f"train.evaluate_every={every}"), tmp_path, quiet=True)
    assert [row["epoch"] for row in rows(tmp_path) if "validation" in row] == evaluated
    assert found["validation"] is not None


@pytest.mark.parametrize("fraction", [0, 1e-4])
def test_without_a_validation_image_there_is_no_validation_figure(tmp_path, fraction):
    found = fit(small(f"data.validation={fraction}"), tmp_path, quiet=True)
    assert found["validation"] is None
    assert found["test"]["accuracy"] > 0
    assert not any("validation" in row for row in rows(tmp_path))


def test_one_validation_image_is_right_or_wrong(tmp_path):
    found = fit(small("data.validation=0.001"), tmp_path, quiet=True)
    assert found["validation"]["accuracy"] in (0.0, 100.0)


def test_a_network_without_a_layer_of_the_kind_says_so(tmp_path):
    with pytest.raises(ValueError, match="attention"):
        fit(small(OWN.format("linear_only"), "method.kind=heads"), tmp_path / "run", trust=True, quiet=True)


def test_filters_of_a_network_of_linear_layers_are_its_neurons(tmp_path):
    """As compress(filters=...) means them."""
    fit(small(OWN.format("linear_only")), tmp_path / "run", trust=True, quiet=True)
    assert "GroupKSupportBall" in (tmp_path / "run" / "regions.txt").read_text()


@pytest.mark.parametrize("variant", ["sgd", "filters", "rank"])
@pytest.mark.parametrize("ema", ["null", "0.9"])
def test_frozen_layers_stay_bit_for_bit_as_they_were(tmp_path, variant, ema):
    config = small(OWN.format("frozen"), f"train.ema={ema}", variant=variant)
    fit(config, tmp_path, trust=True, quiet=True)
    torch.manual_seed(config.seed)
    before, after = frozen(4).state_dict(), load_file(tmp_path / "model.safetensors")
    assert torch.equal(before["3.weight"], after["3.weight"])
    assert not torch.equal(before["0.weight"], after["0.weight"])


@pytest.mark.parametrize("variant", ["sgd", "filters"])
def test_a_loss_that_explodes_ends_the_run_in_one_line_that_names_a_parameter(tmp_path, variant):
    changes = ("train.lr=1e18", "train.rest_lr=1e18", "train.momentum=0.99")
    words = command(f"digits-resnet-{variant}", tmp_path / "run", "model.name=train.networks:group_norm", *changes)
    _, err = ended(start(words), code=1)
    said = err.splitlines()[-1]
    assert re.match(
        r"failed: by step \d+ of \d+: the training diverged, non-finite gradient in .*; a smaller train.lr may help",
        said,
    )
    assert "weight" in said or "bias" in said
    assert "Traceback" not in err
    assert not (tmp_path / "run" / "result.json").exists()


def test_a_step_that_is_not_finite_leaves_the_weights_of_the_step_before():
    training = prepared()
    (batch, *_) = training.data.train.training(0, 0, 400)
    training.advance(batch)
    before = [p.detach().clone() for p in training.model.parameters()]
    with pytest.raises(NonFiniteGradientError):
        training.advance(batch._replace(inputs=batch.inputs * float("nan")))
    assert all(torch.equal(a, b) for a, b in zip(before, training.model.parameters(), strict=True))


def test_batch_norm_statistics_of_an_averaged_network_are_those_of_the_averaged_weights():
    """Not of the weights that made the running averages."""
    training = prepared("train.ema=0.5", variant="sgd")
    training.model.train()
    for batch in training.data.train.training(0, 0, 400):
        training.advance(batch)
        training.step += 1
    found = evaluated_model(training, 500)
    averaged = copy.deepcopy(training.model)
    training.average.write_to(averaged, training.step)
    expected = recalibrate(averaged.eval(), training.data.train.sample(500)).state_dict()
    for name, value in found.state_dict().items():
        assert torch.equal(value, expected[name]), name
    assert not torch.equal(found.bn1.running_mean, training.model.bn1.running_mean)
    assert training.model.training


def test_evaluating_changes_nothing_in_the_training():
    training = prepared("train.ema=0.5")
    (batch, *_) = training.data.train.training(0, 0, 400)
    training.advance(batch)
    training.step = 1
    before = {name: t.clone() for name, t in training.model.state_dict().items()}
    evaluated_model(training)
    assert all(torch.equal(before[name], t) for name, t in training.model.state_dict().items())


def test_a_state_goes_on_where_the_loss_is_scaled_and_was_not_before():
    """engine.precision may change between a start and a resume, to fp16 and back."""
    plain, scaled = prepared(), prepared()
    scaled.scaler = torch.amp.GradScaler("cpu", enabled=True, init_scale=8.0)
    scaled.load(plain.state())
    assert scaled.scaler.get_scale() == 8.0
    plain.load(scaled.state())
    again = prepared()
    again.scaler = torch.amp.GradScaler("cpu", enabled=True)
    again.load(scaled.state())
    assert again.scaler.get_scale() == 8.0


def test_the_rate_depends_on_the_step_alone_and_does_not_drift():
    """Scaled and scaled again, through a state and back: always the base times the factor."""
    training = prepared("train.lr=0.3", "train.rest_lr=0.7")
    for factor in (0.1, 0.7, 1e-9, 1 / 3):
        training.rates.scale(factor)
        before, training = training, prepared("train.lr=0.3", "train.rest_lr=0.7")
        training.load(before.state())
    training.rates.scale(1.0)
    assert {group["lr"] for group in training.optimizer.param_groups} == {0.3, 0.7}


def test_the_clock_counts_what_is_between_start_and_stop_and_what_was_before(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("sparsefw.train.loop.time.perf_counter", lambda: now[0])
    clock = Clock(10.0)
    clock.start()
    now[0] = 103.0
    with clock.paused():
        now[0] = 200.0
        assert clock.seconds() == 13.0
    now[0] = 201.0
    clock.stop()
    now[0] = 500.0
    assert clock.seconds() == 14.0
    with clock.paused():
        now[0] = 600.0
    assert clock.seconds() == 14.0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("engine.device=cuda", "there is no CUDA device"),
        ("engine.precision=fp16", "needs a CUDA device"),
        ("engine.cuda_graph=true", "needs a CUDA device"),
        ("engine.sync_batchnorm=true", "needs CUDA devices"),
    ],
)
def test_an_engine_that_is_not_here_is_refused_in_one_line(monkeypatch, change, said):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=said):
        engine_for(small(change), 10)


def test_the_result_is_the_same_whatever_ran_before_in_the_process(tmp_path):
    fit(small(), tmp_path / "first", quiet=True)
    torch.manual_seed(12345)
    torch.rand(7)
    fit(small(), tmp_path / "second", quiet=True)
    assert (tmp_path / "first" / "model.safetensors").read_bytes() == (
        tmp_path / "second" / "model.safetensors"
    ).read_bytes()
    fit(small("seed=1"), tmp_path / "third", quiet=True)
    first, third = (RunFolder(tmp_path / name).load_model()[0] for name in ("first", "third"))
    assert not torch.equal(first.conv1.weight, third.conv1.weight)
