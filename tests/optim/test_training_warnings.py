"""Warnings of SFW: each is given once, and only where a training will not go well."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from catalog import gaussian
from optim.small_networks import cnn, single_weight, train
from sparsefw import SFW, constrain
from sparsefw import geometry as geo
from sparsefw.optim import Horizon, SFWWarning


def test_more_steps_than_announced_are_told_once_and_the_rate_stays():
    p, optimizer = single_weight(geo.LpBall(2, 3.0), Horizon(5, 0.05), gaussian((4,), 0))
    said = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for t in range(12):
            p.grad = gaussian((4,), t)
            optimizer.step()
            said.append(len(caught))
    assert said == [0] * 5 + [1] * 7
    assert "more than the announced steps=5" in str(caught[0].message)
    assert optimizer.diagnostics()[0].step_size == pytest.approx(0.02 / 5)  # as in the last announced step


def test_an_optimizer_without_regions_says_that_it_is_plain_sgd():
    model = cnn()
    with pytest.warns(SFWWarning, match="nothing is constrained: without regions SFW is plain SGD"):
        SFW(model.parameters())
    with pytest.warns(SFWWarning, match="nothing is constrained"):
        SFW([{"params": list(model.parameters()), "lr": 0.2}])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SFW([{"params": list(model.parameters()), "region": None}])  # says so itself


def test_scaling_weights_onto_regions_is_told_once_for_all_layers():
    with pytest.warns(SFWWarning) as caught:
        SFW(constrain(cnn(), "filters", k=0.2, w=0.01, report=None))
    assert len(caught) == 1
    assert "3 of 3 weights were outside of their regions and were scaled onto them" in str(caught[0].message)
    assert "constrain(..., steps=...)" in str(caught[0].message)


def test_steps_that_are_always_cut_at_1_are_told():
    """The gradient rule, a tiny region and a large learning rate: every step replaces the weights."""
    torch.manual_seed(0)
    model = cnn()
    optimizer = SFW(constrain(model, "filters", k=0.3, w=1e-3, report=None), lr=0.5, rest_lr=1e-3, check_every=10)
    with pytest.warns(SFWWarning, match=r"the step size was cut at 1 in most steps of \S+ and 2 more of 3 layers"):
        train(model, optimizer, 10)
    with warnings.catch_warnings():
        warnings.simplefilter("error", SFWWarning)
        train(model, optimizer, 10, start=10)  # once is enough


def test_a_schedule_that_leaves_too_little_to_renew_is_told():
    p, optimizer = single_weight(geo.LpBall(2, 3.0), Horizon(20, 0.2), gaussian((4,), 0), lr=0.1)
    optimizer.param_groups[0]["lr"] = 0.01
    for t in range(19):
        p.grad = gaussian((4,), t)
        optimizer.step()
    with pytest.warns(
        SFWWarning, match=r"weights were renewed 0\.0\d+ times instead of the planned 0\.2.*lr=0\.1"
    ) as caught:
        optimizer.step()
    assert len(caught) == 1


def test_weights_that_are_loaded_before_the_first_step_enter_their_regions_and_say_so():
    model, larger = cnn(), cnn()
    optimizer = SFW(constrain(model, "filters", steps=100, report=None))
    with torch.no_grad():
        for p in larger.parameters():
            p.mul_(50)
    model.load_state_dict(larger.state_dict())
    with pytest.warns(SFWWarning, match="were outside of their regions and were scaled onto them"):
        train(model, optimizer, 1)
    group = optimizer.param_groups[0]
    assert group["region"].contains(group["params"][0].detach())


def test_weights_that_are_loaded_and_fit_are_taken_as_they_are(recwarn):
    model, other = cnn(), cnn()
    optimizer = SFW(constrain(model, "filters", steps=100, report=None))
    model.load_state_dict(other.state_dict())
    optimizer.enter_regions()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert not [w for w in recwarn if issubclass(w.category, SFWWarning)]


def test_a_network_in_which_nothing_fires_is_told():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    with torch.no_grad():
        model[0].weight.zero_()
        model[0].bias.fill_(-1.0)
    optimizer = SFW(constrain(model, "neurons", steps=100, report=None), lr=0.1, check_every=5)

    def twenty_steps() -> None:
        for _ in range(20):
            optimizer.zero_grad()
            model(torch.randn(3, 4)).square().mean().backward()
            optimizer.step()

    with pytest.warns(SFWWarning, match="all gradients of constrained layers are 0") as caught:
        twenty_steps()
    assert len(caught) == 1


def test_an_optimizer_that_is_made_anew_every_epoch_is_told():
    model = cnn()
    with warnings.catch_warnings():
        warnings.simplefilter("error", SFWWarning)
        for _ in range(2):  # a training and its sequel
            train(model, SFW(constrain(model, "filters", steps=10, report=None)), 2)
    with pytest.warns(SFWWarning, match="make one SFW for the whole training"):
        SFW(constrain(model, "filters", steps=10, report=None))


def backward(model: nn.Module) -> None:
    model(torch.randn(3, 4)).square().mean().backward()


def two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 5), nn.Linear(5, 2))


def assigned(model: nn.Module) -> None:
    model.load_state_dict({name: p.clone() for name, p in model.state_dict().items()}, assign=True)


def replaced(model: nn.Module) -> None:
    model[1] = nn.Linear(6, 5)


@pytest.mark.parametrize("built", ["before", "after"])
@pytest.mark.parametrize(
    ("change", "named"), [(replaced, r"1\.weight, 1\.bias:"), (assigned, r"0\.weight, 1\.weight, \S+ and 3 more:")]
)
def test_parameters_that_the_model_no_longer_has_are_an_error_that_names_them(change, named, built):
    """They would never move, and nobody would notice."""
    model = two_layers()
    groups = constrain(model, "neurons", steps=10, report=None)
    if built == "before":
        optimizer = SFW(groups, lr=0.1)
    change(model)
    if built == "after":
        optimizer = SFW(groups, lr=0.1)
    for _ in range(2):
        backward(model)
        optimizer.step()
    backward(model)
    with pytest.raises(RuntimeError, match=f"the model no longer has {named}.*fully_shard"):
        optimizer.step()


def test_parameters_none_of_which_ever_has_a_gradient_are_an_error_that_names_them():
    model = nn.Linear(4, 4)
    optimizer = SFW(constrain(model, "neurons", steps=10, report=None), lr=0.1)
    for _ in range(2):
        optimizer.step()
    with pytest.raises(RuntimeError, match=r"in 3 steps, none of its parameters had a gradient, weight, bias:"):
        optimizer.step()


def test_a_branch_that_gets_no_gradient_is_named_once_after_a_hundred_steps():
    model = two_layers()
    model.add_module("branch", nn.Linear(4, 3))
    model.forward = lambda x: model[2](model[1](model[0](x)))  # type: ignore[method-assign]
    optimizer = SFW(constrain(model, "neurons", steps=300, report=None), lr=0.1)

    def steps(count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad()
            backward(model)
            optimizer.step()

    with warnings.catch_warnings():
        warnings.simplefilter("error", SFWWarning)
        steps(99)
    with pytest.warns(SFWWarning, match=r"branch\.weight, branch\.bias had no gradient in 100 steps") as caught:
        steps(120)
    assert len(caught) == 1


@pytest.mark.filterwarnings("error::sparsefw.optim.SFWWarning")
def test_frozen_layers_and_those_that_take_turns_are_neither_an_error_nor_told():
    model = two_layers()
    model[0].requires_grad_(False)
    optimizer = SFW(constrain(model, "neurons", steps=300, report=None), lr=0.1)
    for step in range(150):
        optimizer.zero_grad()
        backward(model)
        if step % 60 < 50:
            model[1].weight.grad = model[1].bias.grad = None
        optimizer.step()


def test_steps_without_gradients_now_and_then_are_no_error():
    model = nn.Linear(4, 4)
    optimizer = SFW(constrain(model, "neurons", steps=100, report=None), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        optimizer.step()
        optimizer.step()
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
