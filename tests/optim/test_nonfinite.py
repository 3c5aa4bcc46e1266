"""A non-finite gradient never reaches the weights."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from catalog import gaussian
from sparsefw import SFW
from sparsefw import geometry as geo
from sparsefw.optim import NonFiniteGradientError, kernels
from sparsefw.optim.nonfinite import GradientCheck

BAD = pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 1e30])


def setup(**options):
    torch.manual_seed(0)
    weights = {
        "conv.weight": (geo.GroupKSupportBall(2, 9.0), (4, 3)),
        "low.weight": (geo.SpectralKSupportBall(2, 9.0), (4, 5)),
        "fc.weight": (None, (3, 3)),
        "adam.weight": (None, (2, 2)),
    }
    params = {name: nn.Parameter(torch.randn(shape)) for name, (_, shape) in weights.items()}
    groups = [{"params": [(name, params[name])], "region": region} for name, (region, _) in weights.items()]
    groups[-1]["rest"] = "adamw"
    return params, SFW(groups, lr=0.1, weight_decay=0.01, **options)


def set_gradients(params, step):
    for i, p in enumerate(params.values()):
        p.grad = gaussian(tuple(p.shape), 10 * step + i, torch.float32)


@BAD
@pytest.mark.parametrize("name", ["conv.weight", "low.weight", "fc.weight", "adam.weight"])
def test_raises_names_the_parameter_and_changes_nothing(value, name):
    params, optimizer = setup()
    for step in range(2):
        set_gradients(params, step)
        optimizer.step()
    before, state = copy.deepcopy(params), copy.deepcopy(optimizer.state_dict())
    set_gradients(params, 2)
    params[name].grad.view(-1)[1] = value
    with pytest.raises(NonFiniteGradientError, match=name):
        optimizer.step()
    assert all(torch.equal(params[n], before[n]) for n in params)
    for i, values in optimizer.state_dict()["state"].items():
        for key, tensor in values.items():
            assert torch.equal(torch.as_tensor(tensor), torch.as_tensor(state["state"][i][key])), key
    set_gradients(params, 3)
    optimizer.step()
    assert not torch.equal(params[name], before[name])


@BAD
def test_skip_goes_on_and_counts(value):
    params, optimizer = setup(on_nonfinite="skip")
    clean, reference = setup()
    for step in range(6):
        set_gradients(params, step)
        if step in (1, 4):
            params["fc.weight"].grad[0, 0] = value
        optimizer.step()
        if step not in (1, 4):
            set_gradients(clean, step)
            reference.step()
    assert all(torch.equal(params[n], clean[n]) for n in params)
    assert optimizer.nonfinite_counts() == {"fc.weight": 2}
    assert optimizer.nonfinite_counts() == {}


@pytest.fixture
def as_on_a_device(monkeypatch):
    """The path that accelerators take, where the verdict stays on the device, run on a CPU."""
    monkeypatch.setattr("sparsefw.optim.nonfinite.on_host", lambda device: False)


@BAD
@pytest.mark.parametrize("when", [0, 7])
def test_masked_on_the_device_nothing_changes(as_on_a_device, value, when):
    params, optimizer = setup(on_nonfinite="skip")
    clean, reference = setup(on_nonfinite="skip")
    for step in range(10):
        set_gradients(params, step)
        if step == when:
            before = copy.deepcopy(params)
            params["low.weight"].grad[0, 0] = value
        optimizer.step()
        if step == when:
            assert all(torch.equal(params[n], before[n]) for n in params)
        else:
            set_gradients(clean, step)
            reference.step()
    # The host cannot know that the first step was masked, so the spectral oracle has one of its more careful steps less.
    assert all(torch.equal(params[n], clean[n]) for n in params if when or n != "low.weight")
    assert optimizer.nonfinite_counts() == {"low.weight": 1}


def test_on_a_device_the_error_comes_when_the_count_is_read(as_on_a_device):
    params, optimizer = setup(check_every=4)
    for step in range(8):
        set_gradients(params, step)
        if step == 1:
            params["conv.weight"].grad[0, 0] = float("nan")
        if step == 3:
            with pytest.raises(NonFiniteGradientError, match=r"conv\.weight; the step was not taken"):
                optimizer.step()
        else:
            optimizer.step()
    params["conv.weight"].grad[0, 0] = float("nan")
    optimizer.step()
    with pytest.raises(NonFiniteGradientError):
        optimizer.check_finite()


def test_masked_and_plain_paths_agree(as_on_a_device, monkeypatch):
    params, optimizer = setup()
    for step in range(6):
        set_gradients(params, step)
        optimizer.step()
    monkeypatch.undo()
    plain, reference = setup()
    for step in range(6):
        set_gradients(plain, step)
        reference.step()
    for n in params:
        torch.testing.assert_close(params[n], plain[n], rtol=1e-5, atol=1e-6)


def test_half_precision_norms_do_not_overflow():
    """The norm of finite float16 values may exceed float16's largest number; that is a healthy gradient."""
    healthy, norms = GradientCheck().check([torch.full((64, 64), 6e4, dtype=torch.float16)], ["w"])
    assert healthy is None
    assert float(norms[0]) == pytest.approx(64 * 6e4, rel=1e-2)


@pytest.mark.parametrize("step", [1, 2], ids=["dense", "strided"])
def test_masking_replaces_all_by_zero_and_not_only_nan(step):
    g = torch.tensor([1.0, 2.0, float("nan"), 3.0])[::step]
    (masked,) = kernels.masked([g], torch.tensor(False))
    assert not masked.any()
    (kept,) = kernels.masked([torch.ones(4)[::step]], torch.tensor(True))
    assert kept.all()
