"""Training on a GPU: captured steps, half precision, no waiting for the device."""

from __future__ import annotations

import pytest
import torch

from gpu import never_waiting
from sparsefw.config_base import ConfigError
from sparsefw.runfolder.read import read_epochs
from sparsefw.train import fit, load_recipe
from sparsefw.train.display import Display
from sparsefw.train.loop import one_step
from sparsefw.train.run import prepare
from sparsefw.train.step import EAGER_STEPS, CapturedStep

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
KINDS = ("sgd", "filters", "rank", "weights", "sizes", "sgd-sizes", "rank-sizes", "weights-sizes")


def config(kind: str, *changes: str):
    return load_recipe(f"digits-resnet-{kind}", ["model.arguments.width=16", "train.epochs=3", *changes])


@pytest.mark.parametrize("kind", KINDS)
def test_captured_steps_are_those_of_an_ordinary_training(kind):
    """A few of them: choices among nearly equal gradients, and with them whole trainings, differ by the rounding of sums."""
    found = []
    for graph in ("true", "false"):
        same = ("engine.precision=fp32", "engine.channels_last=false", f"engine.cuda_graph={graph}")
        training = prepare(config(kind, *same), None, Display("", quiet=True))
        training.model.train()
        for batch, _ in zip(training.data.train.training(0, 0, 64), range(EAGER_STEPS + 4), strict=False):
            one_step(training, batch, 0.1)
        found.append(torch.cat([p.detach().flatten() for p in training.model.parameters()]))
    captured, ordinary = found
    # Directions of nearly equal singular values turn, and of nearly equal filters another one goes.
    few = 0.02 if kind in ("sgd", "filters", "weights") else 0.1
    assert torch.linalg.vector_norm(captured - ordinary) <= few * torch.linalg.vector_norm(ordinary)


@pytest.mark.parametrize("kind", KINDS)
def test_steps_do_not_wait_for_the_device(kind):
    training = prepare(config(kind), None, Display("", quiet=True))
    assert isinstance(training.advance, CapturedStep)
    training.model.train()
    batches = training.data.train.training(0, 0, 64)
    for _ in range(EAGER_STEPS + 2):
        one_step(training, next(batches), 0.5)
    with never_waiting():
        for batch, factor in zip(batches, (0.5, 0.4, 0.3), strict=False):
            one_step(training, batch, factor)


@pytest.mark.parametrize("kind", ["sizes", "rank-sizes"])
def test_ordinary_steps_over_sizes_do_not_wait_for_the_device_either(kind):
    training = prepare(config(kind, "engine.cuda_graph=false", "engine.precision=bf16"), None, Display("", quiet=True))
    training.model.train()
    batches = training.data.train.training(0, 0, 64)
    for _ in range(EAGER_STEPS):
        one_step(training, next(batches), 0.5)
    with never_waiting():
        for batch, factor in zip(batches, (0.5, 0.4, 0.3), strict=False):
            one_step(training, batch, factor)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("kind", ["sgd", "filters"])
def test_learns_in_every_precision(kind, precision, tmp_path):
    result = fit(config(kind, f"engine.precision={precision}", "train.epochs=12"), tmp_path / "run", quiet=True)
    assert result["test"]["accuracy"] > 85


def test_the_learning_rate_of_a_captured_step_follows_the_schedule():
    """With a rate of 0 nothing moves."""
    training = prepare(config("sgd"), None, Display("", quiet=True))
    training.model.train()
    batches = training.data.train.training(0, 0, 64)
    for _ in range(EAGER_STEPS + 2):
        training.rates.scale(1.0)
        training.advance(next(batches))
    before = [p.clone() for p in training.model.parameters()]
    training.rates.scale(0.0)
    training.advance(next(batches))
    assert all(torch.equal(p, q) for p, q in zip(training.model.parameters(), before, strict=True))
    training.rates.scale(1.0)
    training.advance(next(batches))
    assert not any(torch.equal(p, q) for p, q in zip(training.model.parameters(), before, strict=True))


def test_images_live_on_the_device_as_bytes():
    training = prepare(config("sgd"), None, Display("", quiet=True))
    stored = training.data.train._data.images
    assert (stored.dtype, stored.device.type) == (torch.uint8, "cuda")


@pytest.mark.parametrize("kind", ["filters", "rank"])
def test_goes_on_after_a_stop(kind, tmp_path, monkeypatch):
    """A run in two halves, whose second begins with a fresh capture, learns like a whole one."""
    from sparsefw.train import run as module

    changes = ("train.epochs=12", "engine.checkpoint_seconds=0")
    whole = fit(config(kind, *changes), tmp_path / "whole", quiet=True)
    stepped = module.Recorder.stepped

    def stopping(self, training, lr):
        self._asked = "SIGTERM" if training.step == 100 else self._asked
        stepped(self, training, lr)

    with monkeypatch.context() as patched:
        patched.setattr(module.Recorder, "stepped", stopping)
        with pytest.raises(module.Interrupted):
            fit(config(kind, *changes), tmp_path / "half", quiet=True)
    result = fit(config(kind, *changes), tmp_path / "half", quiet=True)
    assert result["steps"] == whole["steps"]
    assert result["test"]["accuracy"] == pytest.approx(whole["test"]["accuracy"], abs=6)


def test_steps_that_wait_for_the_device_are_not_captured(tmp_path):
    """A full SVD does; without it the same method is captured."""
    nuc = ("method.name=nuc", "train.epochs=12")
    assert isinstance(prepare(config("sgd", *nuc), None, Display("", quiet=True)).advance, CapturedStep)
    svd = (*nuc, "method.svd=true")
    assert not isinstance(prepare(config("sgd", *svd), None, Display("", quiet=True)).advance, CapturedStep)
    assert fit(config("sgd", *svd), tmp_path / "run", quiet=True)["test"]["accuracy"] > 85
    with pytest.raises(ConfigError, match=r"cuda_graph.*SVD"):
        prepare(config("sgd", *svd, "engine.cuda_graph=true"), None, Display("", quiet=True))


def test_observed_gradients_are_those_of_an_ordinary_training(tmp_path):
    """Added up inside of the captured step; with a scaled loss, as if it were not."""
    norms = {}
    for precision, graph in (("fp32", "false"), ("fp32", "true"), ("fp16", "false")):
        watched = ("observe.gradients=true", "observe.distance=0.7", f"engine.cuda_graph={graph}")
        folder = tmp_path / precision / graph
        fit(config("sgd", f"engine.precision={precision}", "curve.kind=filters", *watched), folder, quiet=True)
        norms[precision, graph] = [epoch.figures.observed.gradient_norm for epoch in read_epochs(folder)]
    ordinary, captured, scaled = norms.values()
    assert captured[0] == pytest.approx(ordinary[0], rel=0.05)  # later, rounding has made them other trainings
    assert scaled[0] == pytest.approx(ordinary[0], rel=0.05)
