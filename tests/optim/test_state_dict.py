"""Saved, loaded, copied, resumed: training goes on bit for bit, and what does not fit is refused whole."""

from __future__ import annotations

import copy
import io

import pytest
import torch

from catalog import equal, network, optimizer_of, train
from sparsefw import SFW, constrain
from sparsefw.optim import Diameter

KINDS = ["filters", "rank", "weights", "2:4"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rest", ["sgd", "adamw"])
def test_state_dict_continues_bit_for_bit(kind, rest):
    """Saved after 7 steps, through a file that is read without pickle, into a fresh optimizer with other settings."""
    net = network()
    optimizer = optimizer_of(net, kind, rest=rest)
    train(net, optimizer, range(7))
    file = io.BytesIO()
    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    twin = network(1)
    twin.load_state_dict(saved["net"])
    resumed = SFW(constrain(twin, kind, k=None if ":" in kind else 0.5, w=3.0, report=None), lr=9.0, rescale=Diameter())
    twin.load_state_dict(saved["net"])  # making the optimizer may have pulled weights inside
    if ":" not in kind:
        resumed.load_state_dict(saved["optimizer"])
    else:
        resumed.load_state_dict(optimizer.state_dict())
    train(net, optimizer, range(7, 15))
    train(twin, resumed, range(7, 15))
    assert equal(net, twin)
    assert resumed.param_groups[0]["region"] == optimizer.param_groups[0]["region"]


def test_loading_does_not_share_memory_with_the_saved_state():
    net = network()
    optimizer = optimizer_of(net, "rank")
    train(net, optimizer, range(3))
    state = copy.deepcopy(optimizer.state_dict())
    optimizer.load_state_dict(state)
    kept = copy.deepcopy(state)
    train(net, optimizer, range(3, 6))
    for i, values in kept["state"].items():
        for key, value in values.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(state["state"][i][key])), key


@pytest.mark.parametrize("kind", KINDS)
def test_deepcopy_of_model_and_optimizer_goes_its_own_way(kind):
    net = network()
    optimizer = optimizer_of(net, kind)
    train(net, optimizer, range(4))
    twin, copied = copy.deepcopy((net, optimizer))
    assert copied.param_groups[0]["params"][0] is not optimizer.param_groups[0]["params"][0]
    train(net, optimizer, range(4, 9))
    assert not equal(net, twin)
    train(twin, copied, range(4, 9))
    assert equal(net, twin)


@pytest.mark.parametrize("kind", KINDS)
def test_making_an_optimizer_for_trained_weights_does_not_touch_them(kind):
    """The usual order of resuming: load the model, make the optimizer, load its state. Large steps end on the boundary."""
    net = network()
    optimizer = optimizer_of(net, kind, lr=5.0)
    for step in range(20):
        train(net, optimizer, range(step, step + 1))
        twin = copy.deepcopy(net)
        optimizer_of(twin, kind, lr=5.0)
        assert equal(net, twin)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.clear(), "not the state_dict of an optimizer"),
        (lambda s: s["param_groups"].pop(), "the param groups of the state_dict differ"),
        (lambda s: s["param_groups"][0].pop("region"), "is not one of SFW: it has no region"),
        (lambda s: s["param_groups"][0].update(region="ball"), "region must be a dict or None, got a str"),
        (lambda s: s["param_groups"][0]["region"]["gauge"].update(k=99), "k=99 must be at most"),
        (lambda s: s["param_groups"][0]["region"]["gauge"].update(type="Evil"), "unknown part"),
        (lambda s: s["param_groups"][0].update(lr=-3.0), "lr must be a finite number"),
        (lambda s: s["param_groups"][0].update(rescale={"type": "x"}), "unknown step-size rule"),
        (lambda s: s["state"][0].update(momentum=torch.ones(2, 2)), "0.weight: its shape is"),
    ],
)
def test_state_dicts_that_do_not_fit_are_refused_whole(change, message):
    net = network()
    optimizer = optimizer_of(net)
    train(net, optimizer, range(2))
    before = copy.deepcopy(optimizer.state_dict())
    broken = copy.deepcopy(before)
    change(broken)
    with pytest.raises(ValueError, match=message) as caught:
        optimizer.load_state_dict(broken)
    assert "\n" not in str(caught.value)
    assert str(optimizer.state_dict()) == str(before)
    train(net, optimizer, range(2, 3))


def test_a_plain_sgd_state_is_refused():
    net = network()
    with pytest.raises(ValueError, match="the param groups of the state_dict differ"):
        optimizer_of(net).load_state_dict(torch.optim.SGD(net.parameters(), lr=0.1).state_dict())
