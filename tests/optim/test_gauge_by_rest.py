"""The gauge beside SGD and beside AdamW: by hand, without a change of weights, told in the table, and resumed bit for bit."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn

from catalog import gaussian
from optim.small_networks import KINDS, cnn, train
from sparsefw import SFW, Rule, constrain
from sparsefw.geometry import Ball, KSparse, KSupport, SpectralKSparse, SpectralKSupportBall
from sparsefw.optim.layout import layout_of

TOLD = 'with rest="adamw" the gauge is k-sparse'


def regions(optimizer: SFW) -> list[Ball]:
    return [group["region"] for group in optimizer.param_groups if group["region"] is not None]


def trained_long() -> nn.Sequential:
    """A network with one direction that is much longer than all others, and one tiny layer."""
    model = cnn()
    with torch.no_grad():
        model[0].weight[:] = 20 * gaussian((16, 1, 1, 1), 0, torch.float32) * gaussian((1, 3, 3, 3), 1, torch.float32)
        model[3].weight.mul_(1e-8)
    return model


@pytest.mark.parametrize("make", [cnn, trained_long])
@pytest.mark.parametrize("with_example", [False, True])
@pytest.mark.parametrize("rest", ["sgd", "adamw"])
@pytest.mark.parametrize("kind", KINDS)
def test_building_the_optimizer_changes_no_bit_of_the_weights(kind, rest, with_example, make):
    model = make()
    if kind == "neurons":  # no linear layer of the CNN has neurons that can be removed
        model = nn.Sequential(nn.Flatten(), nn.Linear(108, 16), nn.ReLU(), nn.Linear(16, 4))
    before = copy.deepcopy(model.state_dict())
    example = torch.randn(2, 3, 6, 6) if with_example else None
    optimizer = SFW(constrain(model, kind, steps=300, example=example, report=None), lr=0.01, rest=rest)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert regions(optimizer)
    for group in optimizer.param_groups:
        if group["region"] is not None:
            axes = group["axes"] or [0] * len(group["params"])
            block = [p.detach() for p in group["params"]]
            point = layout_of(group["region"], block, axes).gathered(block)
            assert group["region"].contains(point)


@pytest.mark.parametrize("kind", KINDS)
def test_only_filters_and_directions_beside_adamw_have_another_gauge(kind):
    model = nn.Sequential(*cnn()[:-1], nn.Linear(16, 16), nn.Linear(16, 10))
    beside = {
        rest: regions(SFW(constrain(model, kind, steps=300, report=None), rest=rest)) for rest in ("sgd", "adamw")
    }
    if kind not in ("filters", "rank"):
        assert beside["sgd"] == beside["adamw"]
        return
    for usual, changed in zip(beside["sgd"], beside["adamw"], strict=True):
        assert isinstance(usual.gauge, KSupport)
        assert isinstance(changed.gauge, KSparse)
        assert changed.gauge.k == usual.gauge.k


def linear(weight: torch.Tensor) -> nn.Linear:
    layer = nn.Linear(*reversed(weight.shape), bias=False, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(weight)
    return layer


def test_the_diameter_stays_and_grows_only_where_weights_would_be_outside():
    """Radii r of k-support and r / sqrt(k) of k-sparse have the diameter 2 r. diag(100, 0, ...) needs a radius of 100."""
    usual, changed = (
        regions(SFW(constrain(linear(torch.eye(4)), Rule("*", "rank", k=2), steps=300, report=None), rest=rest))[0]
        for rest in ("sgd", "adamw")
    )
    assert changed.radius == pytest.approx(usual.radius / 2**0.5)
    assert changed.diameter((4, 4)) == pytest.approx(usual.diameter((4, 4)))
    long = torch.zeros(16, 16)
    long[0, 0] = 100
    groups = constrain(linear(long), Rule("*", "rank", k=16), steps=3_000, renewals=90, report=None)
    (region,) = regions(SFW(groups, rest="adamw"))
    assert groups[0]["region"].radius / 16**0.5 < 99
    assert region.radius == pytest.approx(100, rel=1e-4)


def test_chosen_directions_move_by_equal_amounts_beside_adamw_and_in_proportion_beside_sgd():
    """Gradients 4 and 3 along two axes: moves by (1, 1) / sqrt(2) and by (4, 3) / 5 of the same length."""
    moves = {}
    for rest in ("sgd", "adamw"):
        layer = linear(torch.eye(3))
        groups = constrain(layer, Rule("*", "rank", k=2), steps=1_000, report=None)
        groups[0]["momentum"] = 0.0
        optimizer = SFW(groups, lr=10.0, rest=rest)
        layer.weight.grad = torch.diag(torch.tensor([4.0, 3.0, 0.0], dtype=torch.float64))
        optimizer.step()
        eta = optimizer.diagnostics()[0].step_size
        moves[rest] = ((1 - eta) * torch.eye(3, dtype=torch.float64) - layer.weight.detach()).diag() / eta
    radius = moves["sgd"].norm()
    torch.testing.assert_close(
        moves["sgd"] / radius, torch.tensor([0.8, 0.6, 0.0], dtype=torch.float64), atol=1e-4, rtol=0
    )
    equal = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64).sqrt()
    torch.testing.assert_close(moves["adamw"] / radius, equal, atol=1e-4, rtol=0)


@pytest.mark.parametrize("gauge", ["k-support", "k-sparse"])
def test_a_gauge_that_the_user_sets_stays(gauge):
    for rest in ("sgd", "adamw"):
        groups = constrain(cnn(), "rank", steps=300, gauge=gauge, report=None)
        expected = {"k-support": SpectralKSupportBall, "k-sparse": SpectralKSparse}[gauge].__name__
        assert {region.name for region in regions(SFW(groups, rest=rest))} == {expected}
        assert TOLD not in str(groups)


@pytest.mark.parametrize("settings", [{"k": 0.2, "w": 20.0}, {"steps": 300, "w": 20.0}])
def test_a_size_that_the_user_sets_keeps_the_gauge(settings):
    groups = constrain(cnn(), "rank", report=None, **settings)
    given = [group["region"] for group in groups if group["region"] is not None]
    assert regions(SFW(groups, rest="adamw")) == given


def test_the_table_tells_where_the_gauge_depends_on_the_rest():
    for kind in ("filters", "rank"):
        assert TOLD in str(constrain(cnn(), kind, steps=300, report=None))
    for kind in ("weights", "2:4"):
        assert TOLD not in str(constrain(cnn(), kind, steps=300, report=None))


def test_a_gauge_for_rules_which_have_their_own_is_refused():
    with pytest.raises(ValueError, match="gauge='k-support' belongs to a word such as 'weights'; rules have their own"):
        constrain(cnn(), Rule("*", "rank"), steps=300, gauge="k-support")


def test_the_same_groups_serve_either_optimizer():
    groups = constrain(cnn(), "rank", steps=300, report=None)
    names = [{region.name for region in regions(SFW(groups, rest=rest))} for rest in ("adamw", "sgd", "adamw")]
    assert names == [{"SpectralKSparse"}, {"SpectralKSupportBall"}, {"SpectralKSparse"}]


@pytest.mark.parametrize("anew", [False, True], ids=["plain groups", "constrained anew"])
def test_resumed_beside_adamw_it_goes_on_bit_for_bit(anew):
    torch.manual_seed(0)
    model = cnn()
    twin = copy.deepcopy(model)
    whole = SFW(constrain(model, "rank", steps=12, report=None), lr=0.01, rest="adamw")
    train(model, whole, 12)
    first = SFW(constrain(twin, "rank", steps=12, report=None), lr=0.01, rest="adamw")
    plain = [{"params": list(group["params"]), "region": None} for group in first.param_groups]
    train(twin, first, 6)
    buffer = io.BytesIO()
    torch.save(first.state_dict(), buffer)
    buffer.seek(0)
    second = SFW(constrain(twin, "rank", steps=12, report=None) if anew else plain, lr=0.01, rest="adamw")
    second.load_state_dict(torch.load(buffer, weights_only=True))
    assert regions(second) == regions(first)
    train(twin, second, 6, start=6)
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(p, q)


def test_weights_that_are_not_finite_are_named():
    model = cnn()
    groups = constrain(model, "rank", steps=300, report=None)
    with torch.no_grad():
        model[3].weight[0, 0, 0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"3\.weight: contains NaN or inf before the first step"):
        SFW(groups, rest="adamw")
