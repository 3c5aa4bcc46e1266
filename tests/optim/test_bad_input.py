"""Settings, groups, weights and gradients that cannot be stepped: one clear line, and nothing changes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from catalog import network, optimizer_of, train
from sparsefw import SFW, constrain
from sparsefw import geometry as geo


@pytest.mark.parametrize(
    ("group", "options", "message"),
    [
        ({"params": [nn.Parameter(torch.ones(3, dtype=torch.complex64))]}, {}, "real floating-point"),
        ({"region": "filters"}, {}, "must be a Ball"),
        ({"rescale": "gradient"}, {}, "rescale must be one of"),
        ({"rest": "lion"}, {}, "'sgd' or 'adamw'"),
        ({"lr": -1.0}, {}, "lr must be a finite number, at least 0"),
        ({"lr": float("nan")}, {}, "lr must be a finite number, at least 0"),
        ({"lr": "0.1"}, {}, "lr must be a finite number"),
        ({"lr": torch.tensor(-0.1)}, {}, "lr must be a finite number"),
        ({"lr": torch.tensor([0.1, 0.2])}, {}, "lr must be a finite number"),
        ({"adam_betas": (1.0, 2.0)}, {}, "adam_betas must be two numbers"),
        ({"adam_eps": -1.0}, {}, "adam_eps must be a finite number"),
        ({"nesterov": True, "momentum": 0.0}, {}, "nesterov needs"),
        ({"region": geo.GroupKSupportBall(9)}, {}, "k=9 must be at most 3, the number of magnitudes"),
        (
            {"coupled": True, "region": geo.GroupKSupportBall(1), "axes": [0, 0]},
            {},
            "axes must be a list with one axis",
        ),
        ({}, {"on_nonfinite": "ignore"}, "'raise' or 'skip'"),
        ({}, {"check_every": 0}, "at least 1"),
    ],
)
def test_bad_settings_are_one_clear_line(group, options, message):
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        SFW([{"params": [nn.Parameter(torch.ones(3, 3))], **group}], **options)
    assert "\n" not in str(caught.value)


def test_keys_that_would_be_ignored_are_refused():
    p = nn.Parameter(torch.ones(3, 3))
    with pytest.raises(ValueError, match="did you mean 'region'"):
        SFW([{"params": [p], "regoin": geo.GroupKSupportBall(1)}])
    with pytest.raises(ValueError, match="weight_decay: without effect"):
        SFW([{"params": [p], "region": geo.GroupKSupportBall(1), "weight_decay": 1e-3}])
    with pytest.raises(ValueError, match="has neither"):
        SFW([{"params": [p], "region": geo.KSupportBall(1), "axes": [1]}])
    SFW(SFW([{"params": [p], "region": geo.GroupKSupportBall(1)}], weight_decay=1e-3).param_groups, weight_decay=1e-3)


def test_nan_weights_are_refused_by_name():
    p = nn.Parameter(torch.full((3, 3), float("nan")))
    for region in (geo.GroupKSupportBall(1), None):
        with pytest.raises(ValueError, match=r"layer\.weight: contains NaN"):
            SFW([{"params": [("layer.weight", p)], "region": region}])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: setattr(p, "grad", torch.zeros_like(p).to_sparse()), "dense gradients"),
        (lambda p: setattr(p, "grad", torch.zeros_like(p).requires_grad_() * 1), "not differentiable"),
    ],
)
def test_gradients_that_cannot_be_stepped_are_refused(change, message):
    p = nn.Parameter(torch.ones(3, 3))
    optimizer = SFW([{"params": [("layer.weight", p)], "region": geo.GroupKSupportBall(1)}])
    change(p)
    with pytest.raises(TypeError, match=message) as caught:
        optimizer.step()
    assert "layer.weight" in str(caught.value)


@pytest.mark.parametrize("how", [{"steps": 10}, {"k": 2, "w": 1.0}], ids=str)
def test_weights_without_values_are_not_constrained(how):
    with torch.device("meta"):
        net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3))
    with pytest.raises(ValueError, match=r"^0\.weight: on the device meta it has no values; [^\n]*$"):
        constrain(net, "filters", report=None, **how)


def test_rejected_group_leaves_the_optimizer_as_it_was():
    net = network()
    optimizer = optimizer_of(net[:5])
    groups = len(optimizer.param_groups)
    with pytest.raises(ValueError, match="k=99 must be at most"):
        optimizer.add_param_group({"params": [net[8].weight], "region": geo.GroupKSupportBall(99)})
    assert len(optimizer.param_groups) == groups
    train(net, optimizer, range(1))


def test_an_interrupt_leaves_no_half_added_group(monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    net = network()
    optimizer = optimizer_of(net[:5])
    groups = list(optimizer.param_groups)
    monkeypatch.setattr("sparsefw.optim.sfw.pull_inside", interrupt)
    with pytest.raises(KeyboardInterrupt):
        optimizer.add_param_group({"params": [net[8].weight], "region": geo.GroupKSupportBall(1)})
    assert optimizer.param_groups == groups
