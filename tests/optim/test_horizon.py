"""The horizon rule: shares by hand, schedules, resuming, and groups that start late."""

from __future__ import annotations

import copy
import io
import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from catalog import gaussian
from optim.small_networks import KINDS, cnn, single_weight, train
from sparsefw import SFW, Rule, constrain
from sparsefw import geometry as geo
from sparsefw.optim import Gradient, Horizon, SFWWarning
from sparsefw.optim.defaults import convolutions_before_norms


def test_shares_fall_to_zero_and_add_up_to_the_renewals():
    """T = 200, R = 1: eta_t = 0.01 (1 - t / 200), which sums to 1.005; what is never chosen decays by their product."""
    p, optimizer = single_weight(
        geo.KSupportBall(1, 2.0), Horizon(200, 1.0), torch.tensor([0.0, 1.0], dtype=torch.float64)
    )
    left = 1.0
    for t in range(200):
        p.grad = torch.tensor([3.0, 1.0], dtype=torch.float64)
        optimizer.step()
        eta = 0.01 * (1 - t / 200)
        left *= 1 - eta
        assert optimizer.diagnostics()[0].step_size == pytest.approx(eta, rel=1e-12)
        assert p.tolist() == pytest.approx([-2 * (1 - left), left], rel=1e-12)
    assert optimizer.progress().renewed == pytest.approx(1.005)
    assert left == pytest.approx(math.exp(-1.005), rel=0.01)


def test_gradients_of_any_scale_give_the_same_steps():
    ends = []
    for scale in (1.0, 1e6, 1e-6):
        p, optimizer = single_weight(geo.GroupKSupportBall(2, 3.0), Horizon(20, 0.3), gaussian((5, 4), 0))
        for t in range(20):
            p.grad = scale * gaussian((5, 4), t + 1)
            optimizer.step()
        ends.append(p.detach())
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(ends[0], ends[2], rtol=1e-9, atol=1e-12)


def test_the_lower_of_schedule_and_horizon_counts():
    """A warm-up and a fast decay are followed; a learning rate above the first one is not."""
    p, optimizer = single_weight(geo.LpBall(2, 3.0), Horizon(100, 1.0), gaussian((4,), 0), lr=0.2)
    for t, lr, expected in ((0, 0.02, 0.1), (1, 0.2, 0.99), (2, 5.0, 0.98), (3, 0.1, 0.5), (4, 0.0, 0.0)):
        optimizer.param_groups[0]["lr"] = lr
        p.grad = gaussian((4,), t)
        optimizer.step()
        assert optimizer.diagnostics()[0].step_size == pytest.approx(0.02 * expected, rel=1e-9), t


def test_the_first_learning_rate_is_that_of_the_group_and_must_be_above_0():
    p = nn.Parameter(gaussian((4,), 0))
    group = {"params": [p], "region": geo.LpBall(2, 9.0), "rescale": Horizon(10, 0.1), "lr": 0.5}
    optimizer = SFW([group], lr=0.1)
    assert optimizer.param_groups[0]["rescale"].full_lr == 0.5
    with pytest.raises(
        ValueError, match=r"lr=0\.0: must be above 0, since step sizes are counted from it; give SFW the highest"
    ):
        SFW([{"params": [p], "region": geo.LpBall(2, 9.0), "rescale": Horizon(10, 0.1)}], lr=0.0)


def test_reach_bounds_the_displacement_by_that_of_sgd():
    """Horizon's share is 0.02; the vertex -3 m / ||m|| is 3 away from theta = 0: lr ||m|| / ||v - theta|| = 0.1 ||m|| / 3."""
    for norm, expected in ((1.0, 0.02), (0.15, 0.01), (0.015, 0.001), (0.0, 0.0)):
        p, optimizer = single_weight(geo.LpBall(2, 3.0), Horizon(100, 1.0, reach=2.0), torch.zeros(2).double())
        p.grad = norm * torch.tensor([0.6, 0.8], dtype=torch.float64)
        optimizer.step()
        assert optimizer.diagnostics()[0].step_size == pytest.approx(expected, rel=1e-9), norm
        assert p.norm().item() <= max(2 * 0.1 * norm, 0.001 * 3) * (1 + 1e-12)


def test_reach_beside_adamw_bounds_the_displacement_by_that_of_adamw():
    """AdamW moves each of four weights by 0.23 lr on noise, however small the gradient. The vertex is 3 away from theta = 0."""
    for lr, expected in ((0.1, 0.02), (0.01, 2 * 0.01 * math.sqrt(4 / 19) / 3)):
        p = nn.Parameter(torch.zeros(4).double())
        group = {"params": [p], "region": geo.LpBall(2, 3.0), "rescale": Horizon(100, 1.0, reach=2.0)}
        optimizer = SFW([group], lr=lr, rest="adamw")
        p.grad = 1e-6 * torch.ones(4, dtype=torch.float64)
        optimizer.step()
        assert optimizer.diagnostics()[0].step_size == pytest.approx(expected, rel=1e-9), lr


def gated_cnn() -> nn.Sequential:
    """Two convolutions before norms, a gate of two without, and a head."""
    gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 4, 1), nn.ReLU(), nn.Conv2d(4, 8, 1), nn.Sigmoid())
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), gate, nn.Linear(8, 2)
    )


def rules_by_name(groups):
    return {name: g["rescale"] for g in groups if g["region"] is not None for name, _ in g["params"]}


@pytest.mark.parametrize(("steps", "sure_share"), [(1_500, 1.5e-4), (5_000, 5e-4), (10_000, 1e-3), (20_000, 1e-3)])
def test_convolutions_without_norms_in_a_network_with_norms_take_smaller_sure_shares(steps, sure_share):
    rules = rules_by_name(constrain(gated_cnn(), "filters", steps=steps, report=None))
    normed, free = (1.0, 0.001), (1.0, pytest.approx(sure_share))
    assert {name: (rule.reach, rule.sure_share) for name, rule in rules.items()} == {
        "0.weight": normed,
        "2.weight": normed,
        "4.1.weight": free,
        "4.3.weight": free,
    }


def test_gates_that_would_hardly_decay_are_left_free_and_listed():
    """Shares of 1e-7 T over T steps add up to 0.1 for T = 1414."""
    for steps, expected in (
        (1_415, {"0.weight", "2.weight", "4.1.weight", "4.3.weight"}),
        (1_414, {"0.weight", "2.weight"}),
    ):
        groups = constrain(gated_cnn(), "filters", steps=steps, report=None)
        assert set(rules_by_name(groups)) == expected
        assert ("without a norm of its own, hardly decays in 1414 steps" in str(groups)) is (steps == 1_414)


class Gated(nn.Module):
    """Two convolutions before norms, and between them a gate: its second convolution writes the channels of the first of them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
        self.gate = nn.Sequential(nn.Conv2d(8, 4, 1), nn.ReLU(), nn.Conv2d(4, 8, 1), nn.Sigmoid())
        self.second = nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8))
        self.head = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return self.head(self.second(x * self.gate(x.mean((2, 3), keepdim=True))).mean((2, 3)))


@pytest.mark.parametrize("steps", [1_414, 1_415])
def test_an_example_leaves_the_same_gates_free(steps):
    """Also the one that would decay together with a convolution before a norm."""
    gates = {"gate.0.weight", "gate.2.weight"}
    with_norms = {"first.0.weight", "first.1.weight", "second.0.weight", "second.1.weight"}
    groups = constrain(Gated(), "filters", steps=steps, example=torch.randn(2, 3, 8, 8), report=None)
    assert set(rules_by_name(groups)) == (with_norms if steps == 1_414 else with_norms | gates)
    assert ("gate.*.weight x2 (without a norm of its own, hardly decays in 1414 steps)" in str(groups)) is (
        steps == 1_414
    )
    named = constrain(Gated(), Rule("*0.weight", "filters"), steps=steps, example=torch.randn(2, 3, 8, 8), report=None)
    assert gates & set(rules_by_name(named)) == {"gate.0.weight"}


@pytest.mark.parametrize("steps", [266, 267])
def test_an_example_leaves_the_same_deep_networks_free(steps):
    """Four layers in a row are left free below 89 * 3 steps; blocks of neurons are left free as a whole."""
    layers = [part for _ in range(3) for part in (nn.Linear(8, 8), nn.ReLU())]
    groups = constrain(
        nn.Sequential(*layers, nn.Linear(8, 2)), "neurons", steps=steps, example=torch.randn(2, 8), report=None
    )
    assert bool(rules_by_name(groups)) is (steps == 267)


@pytest.mark.parametrize(
    ("what", "settings"),
    [("filters", {"renewals": 0.01}), ("filters", {"w": 1.0}), (Rule("*", "filters", types=(nn.Conv2d,)), {})],
)
def test_gates_are_constrained_where_the_user_says_more_than_the_kind(what, settings):
    rules = rules_by_name(constrain(gated_cnn(), what, steps=100, report=None, **settings))
    assert set(rules) == {"0.weight", "2.weight", "4.1.weight", "4.3.weight"}


def test_gates_are_constrained_where_nothing_else_is():
    model = gated_cnn()
    for layer in (model[0], model[2]):
        layer.requires_grad_(False)
    assert set(rules_by_name(constrain(model, "filters", steps=100, report=None))) == {"4.1.weight", "4.3.weight"}


def test_norms_defined_after_all_convolutions_of_a_block_count():
    block = nn.ModuleDict(
        {"conv1": nn.Conv2d(3, 8, 3), "conv2": nn.Conv2d(8, 8, 3), "bn1": nn.BatchNorm2d(8), "bn2": nn.BatchNorm2d(8)}
    )
    assert convolutions_before_norms(block) == {block["conv1"], block["conv2"]}


def test_only_default_shares_have_a_reach():
    model = cnn()
    default = SFW(constrain(model, "filters", steps=100, report=None), lr=0.1)
    dialled = SFW(constrain(model, "filters", steps=100, renewals=1, report=None), lr=0.1)
    beside_adamw = SFW(constrain(model, "filters", steps=100, report=None), lr=1e-3, rest="adamw")
    reaches = [[g["rescale"].reach for g in o.param_groups if g["region"]] for o in (default, dialled, beside_adamw)]
    assert [set(reach) for reach in reaches] == [{1.0}, {None}, {1.0}]


@pytest.mark.parametrize("reach", [0, -1, math.inf, math.nan, "2"])
def test_a_reach_out_of_range_is_refused(reach):
    with pytest.raises(ValueError, match="reach must be a number above 0, or None"):
        Horizon(10, 1.0, reach=reach)


def test_masked_steps_use_up_no_horizon(monkeypatch):
    monkeypatch.setattr("sparsefw.optim.nonfinite.on_host", lambda device: False)
    p = nn.Parameter(torch.ones(2, 2))
    group = {"params": [p], "region": geo.GroupKSupportBall(1, 9.0), "rescale": Horizon(10, 0.1)}
    optimizer = SFW([group], on_nonfinite="skip")
    for value, expected in ((1.0, 0.02), (float("nan"), 0.0), (1.0, 0.018)):
        p.grad = torch.full((2, 2), value)
        optimizer.step()
        assert float(optimizer.step_sizes()[0]) == pytest.approx(expected)


@pytest.mark.parametrize("kind", KINDS)
def test_resumed_in_the_middle_it_goes_on_bit_for_bit(kind):
    torch.manual_seed(0)
    model = cnn()
    twin = copy.deepcopy(model)
    whole = SFW(constrain(model, kind, steps=12, report=None))
    train(model, whole, 12)
    first = SFW(constrain(twin, kind, steps=12, report=None))
    groups = [list(group["params"]) for group in first.param_groups]
    train(twin, first, 6)
    buffer = io.BytesIO()
    torch.save(first.state_dict(), buffer)
    buffer.seek(0)
    second = SFW([{"params": g, "region": None} for g in groups])
    second.load_state_dict(torch.load(buffer, weights_only=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error", SFWWarning)  # twelve steps were announced, and twelve are taken
        train(twin, second, 6, start=6)
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(p, q)
    assert second.progress() == whole.progress()


def test_a_state_of_other_layers_is_refused():
    one, other = nn.Sequential(nn.Linear(4, 4)), nn.Sequential(nn.Identity(), nn.Linear(4, 4))
    saved = SFW(constrain(one, "neurons", steps=9, report=None)).state_dict()
    with pytest.raises(ValueError, match=r"param group 0 of the state_dict contains 0\.weight, but not the same group"):
        SFW(constrain(other, "neurons", steps=9, report=None)).load_state_dict(saved)


def test_a_rule_for_all_groups_that_none_would_follow_is_refused():
    groups = constrain(cnn(), "filters", steps=100, report=None)
    with pytest.raises(ValueError, match="has no effect: the groups have their own rule, Horizon"):
        SFW(groups, rescale=Gradient())
    SFW(constrain(cnn(), "filters", k=0.2, w=20.0, report=None), rescale=Gradient())


def test_steps_are_counted_group_by_group_and_copies_keep_the_count():
    p, optimizer = single_weight(geo.LpBall(2, 3.0), Horizon(30, 0.2), gaussian((4,), 0))
    q = nn.Parameter(gaussian((4,), 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error", SFWWarning)
        for t in range(25):
            p.grad = gaussian((4,), t)
            optimizer.step()
        optimizer.add_param_group({"params": [q], "region": geo.LpBall(2, 3.0), "rescale": Horizon(10, 0.1)})
        for t in range(5):
            p.grad, q.grad = gaussian((4,), t), gaussian((4,), t)
            optimizer.step()
        twin = copy.deepcopy(optimizer)
    for group in twin.param_groups:
        for parameter in group["params"]:
            parameter.grad = gaussian((4,), 9)
    with pytest.warns(SFWWarning, match="more than the announced steps=30"):
        twin.step()


def test_numbers_of_numpy_are_numbers():
    model = nn.Sequential(nn.Linear(8, 16))
    groups = constrain(model, "neurons", k=np.int64(1), steps=np.int32(100), renewals=np.float64(0.5), report=None)
    assert groups[0]["region"].gauge.k == 1
    types = [type(value) for value in groups[0]["rescale"].plain().values()]
    assert types == [str, int, float, type(None), type(None), float, type(None)]


def test_a_table_without_regions_says_that_nothing_is_constrained():
    assert constrain(nn.Sequential(nn.Linear(2, 4)), "2:4", steps=10, report=None).notes[0] == "nothing is constrained"


def test_progress_of_the_whole_counts_layers_by_their_size():
    """Two L1 balls of 3 and 1 entries: (0, 0, 4) has two of three below 5 % of its largest, (2,) has none."""
    p, q = (nn.Parameter(torch.tensor(v, dtype=torch.float64)) for v in ([0.0, 0.1, 4.0], [2.0]))
    groups = [{"params": [t], "region": geo.KSupportBall(1, 100.0)} for t in (p, q)]
    optimizer = SFW(groups, lr=0.0)
    progress = optimizer.progress()
    assert progress.decayed == pytest.approx((3 * 2 / 3 + 0) / 4)
    assert progress.compressible == pytest.approx((3 * 4 / math.hypot(0.1, 4) + 1) / 4)
    assert progress.renewed == progress.clamped == 0
    assert optimizer.diagnostics().total == progress
    layers = list(optimizer.progress_of_layers().values())
    assert [(entries, part.decayed) for entries, part in layers] == [(3, pytest.approx(2 / 3)), (1, 0)]
    assert str(optimizer.diagnostics()).splitlines()[-1].startswith("all layers: renewed 0.00 times, 50% decayed")
    assert SFW([{"params": [q], "region": None}]).progress() is None


def test_a_layer_that_is_unfrozen_late_is_as_far_as_all_others():
    model = cnn()
    optimizer = SFW(constrain(model, "filters", steps=20, report=None))
    model[3].weight.requires_grad_(False)
    train(model, optimizer, 15)
    model[3].weight.requires_grad_(True)
    train(model, optimizer, 5, start=15)
    shares = {layer.name: layer.step_size for layer in optimizer.diagnostics()}
    assert shares["3.weight"] == shares["0.weight"] > 0


def test_a_group_that_is_added_later_has_a_horizon_of_its_own():
    model, head = cnn(), nn.Linear(10, 4)
    optimizer = SFW(constrain(model, "filters", steps=20, report=None))
    train(model, optimizer, 15)
    (added, *_) = constrain(head, "neurons", steps=20, report=None)
    optimizer.add_param_group(added)
    head.weight.grad = torch.ones_like(head.weight)
    train(model, optimizer, 1, start=15)  # zero_grad leaves the head out
    head.weight.grad = torch.ones_like(head.weight)
    optimizer.step()
    taken = {name: stack.figures.taken for _, stack, names in optimizer._labelled_stacks() for name in names}
    assert taken["weight"].item() == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"adam_betas": 5}, r"adam_betas must be two numbers in \[0, 1\), got 5"),
        ({"adam_betas": (0.9,)}, "adam_betas must be two numbers"),
        ({"check_every": "often"}, "check_every must be a whole number of at least 1, got 'often'"),
        ({"check_every": 1.5}, "check_every must be a whole number of at least 1, got 1.5"),
        ({"fused": "yes"}, "fused must be True, False or None, got 'yes'"),
    ],
)
def test_arguments_of_a_wrong_type_get_one_line(arguments, message):
    with pytest.raises(ValueError, match=message):
        SFW(constrain(cnn(), "filters", steps=100, report=None), **arguments)


def test_what_is_no_list_of_parameters_is_named():
    for wrong in (None, 5, cnn()):
        with pytest.raises(TypeError, match=f"params must be those of constrain.*got {type(wrong).__name__}"):
            SFW(wrong)
    with pytest.raises(ValueError, match="axes must be a list with one axis for each tensor of a block, 1 here"):
        SFW([{"params": [nn.Parameter(torch.ones(3, 3))], "region": geo.GroupKSupportBall(1, 1.0), "axes": 5}])


def test_forgotten_steps_are_asked_for_first():
    with pytest.raises(
        ValueError, match="give steps, the optimizer steps of the whole training, and nothing else is needed"
    ):
        constrain(cnn(), "filters", report=None)
