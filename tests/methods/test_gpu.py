"""Every method on a GPU: captured steps, scaled losses, and new captures where regions change."""

from __future__ import annotations

import pytest
import torch

from gpu import never_waiting
from methods.forms import FORMS, changes
from sparsefw.methods import method_from
from sparsefw.train import fit, load_recipe
from sparsefw.train.display import Display
from sparsefw.train.loop import one_step
from sparsefw.train.run import prepare
from sparsefw.train.step import EAGER_STEPS, CapturedStep

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
every = pytest.mark.parametrize("form", FORMS)


def config(form: str, *more: str):
    return load_recipe("digits-resnet-sgd", ["model.arguments.width=16", "train.epochs=3", *changes(form), *more])


def advanced(form: str, steps: int, *more: str):
    """Return a training after this number of steps, with fixed random numbers."""
    training = prepare(config(form, *more), None, Display("", quiet=True))
    training.model.train()
    for i, batch in enumerate(training.data.train.training(0, 0, 64)):
        if i == steps:
            break
        one_step(training, batch, 0.1)
    return training


@every
def test_captured_steps_are_those_of_an_ordinary_training(form):
    """Even with random numbers, because every replay draws those of its seed. Where spectra become flat, rounding adds up."""
    same = ("engine.precision=fp32", "engine.channels_last=false")
    if method_from(FORMS[form]).uncapturable:
        assert not isinstance(advanced(form, 1, *same).advance, CapturedStep)
        return
    weights = []
    for graph in ("true", "false"):
        training = advanced(form, EAGER_STEPS + 4, *same, f"engine.cuda_graph={graph}")
        weights.append(torch.cat([p.detach().flatten() for p in training.model.parameters()]))
    captured, ordinary = weights
    assert torch.linalg.vector_norm(captured - ordinary) <= 0.05 * torch.linalg.vector_norm(ordinary)


@every
def test_captured_steps_do_not_wait_for_the_device(form):
    if method_from(FORMS[form]).uncapturable:
        pytest.skip(f"not captured: {method_from(FORMS[form]).uncapturable}")
    training = advanced(form, EAGER_STEPS + 2)
    batches = list(training.data.train.training(1, 0, 64))[:3]
    with never_waiting():
        for batch in batches:
            one_step(training, batch, 0.1)


@pytest.mark.parametrize("form", [form for form in FORMS if method_from(FORMS[form]).passes == 1])
def test_captured_steps_over_sizes_do_not_wait_either(form):
    if method_from(FORMS[form]).uncapturable:
        pytest.skip(f"not captured: {method_from(FORMS[form]).uncapturable}")
    training = advanced(form, EAGER_STEPS + 2, "sizes={}")
    assert isinstance(training.advance, CapturedStep)
    batches = list(training.data.train.training(1, 0, 64))[:3]
    with never_waiting():
        for batch in batches:
            one_step(training, batch, 0.1)


@every
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_and_scaled_losses(form, precision, tmp_path):
    result = fit(config(form, f"engine.precision={precision}", "train.epochs=15"), tmp_path / "run", quiet=True)
    assert result["test"]["accuracy"] > 60


@pytest.mark.parametrize("kind", ["filters", "rank", "weights"])
def test_where_regions_change_a_new_step_is_captured(kind, tmp_path):
    changed = ["method.name=sparsefw", f"method.kind={kind}", "method.k=0.2", "method.anneal=true", "method.over=1.0"]
    settings = ["model.arguments.width=16", "train.epochs=10", "data.batch_size=32", *changed]
    training = prepare(load_recipe("digits-resnet-sgd", settings), None, Display("", quiet=True))
    assert isinstance(training.advance, CapturedStep)
    result = fit(load_recipe("digits-resnet-sgd", settings), tmp_path / "run", quiet=True)
    assert result["test"]["accuracy"] > 80
