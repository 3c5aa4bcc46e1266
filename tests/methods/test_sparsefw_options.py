"""The options of SparseFW: their effects, and their refusal where they would have none."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from methods.by_hand import layer, optimizer_of
from sparsefw.config_base import ConfigError
from sparsefw.geometry import KSparse, KSupport
from sparsefw.methods import SparseFW, method_from
from sparsefw.models import build
from sparsefw.optim import Diameter, FastGradient, Gradient, Unscaled, initial_norm
from sparsefw.train import load_recipe

ROWS = [[0.1, 0.0], [0.0, 0.2], [0.3, 0.0], [0.0, 0.4]]


def regions(optimizer) -> list:
    return [group["region"] for group in optimizer.param_groups if group["region"] is not None]


@pytest.mark.parametrize("kind", ["filters", "rank", "weights"])
@pytest.mark.parametrize(("gauge", "expected"), [("k-support", KSupport), ("k-sparse", KSparse)])
def test_gauge(kind, gauge, expected):
    method = SparseFW(kind=kind, k=0.5, w=1.0, gauge=gauge)
    (region,) = regions(optimizer_of(method, layer(ROWS), 0.1))
    assert isinstance(region.gauge, expected)
    assert region.diameter((4, 2, 1, 1)) == pytest.approx(2 * initial_norm(layer(ROWS)[0], "weight", torch.empty(4, 2)))


@pytest.mark.parametrize(
    ("options", "rest", "expected"),
    [
        ({}, "adamw", KSparse),
        ({}, "sgd", KSupport),
        ({"gauge": "k-support"}, "adamw", KSupport),
        ({"w": 1.0}, "adamw", KSupport),
        ({"anneal": True}, "adamw", KSupport),
        ({"rescale": "gradient"}, "adamw", KSupport),
    ],
)
def test_the_gauge_of_directions_goes_by_the_rest_unless_something_else_fixes_it(options, rest, expected):
    method = SparseFW(kind="rank", k=0.5, **options)
    (region,) = regions(optimizer_of(method, layer(ROWS), 0.1, rest=rest))
    assert isinstance(region.gauge, expected)


@pytest.mark.parametrize(("kind", "w"), [("weights", 0.4), ("rank", 0.2), ("2:4", 0.4), ("neurons", 3.0)])
def test_short_trainings_have_regions_in_which_they_can_learn_also_for_all_else(kind, w):
    """Half of the diameter is w times the initial norm: sqrt(entries / (3 fan_in)) for a convolution, 1 for a bias of 0."""
    net = nn.Sequential(nn.Conv2d(8, 8, 3, bias=False), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8, 4, bias=False))
    k = None if ":" in kind else 0.5
    optimizer = optimizer_of(SparseFW(kind=kind, rescale="gradient", k=k, everything=True), net, 0.1, steps=10)
    expected = {
        net[0].weight: math.sqrt(8 / 3),
        net[1].weight: math.sqrt(8),
        net[1].bias: 1.0,
        net[3].weight: math.sqrt(4 / 3),
    }
    regions_by_parameter = {p: group["region"] for group in optimizer.param_groups for p in group["params"]}
    for p, norm in expected.items():
        diameter = regions_by_parameter[p].diameter(tuple(p.shape))
        assert diameter / 2 == pytest.approx(w * norm, rel=0.02), tuple(p.shape)


@pytest.mark.parametrize(
    ("rescale", "rule"),
    [("gradient", Gradient()), ("fast_gradient", FastGradient()), ("diameter", Diameter()), ("none", Unscaled())],
)
def test_rescale(rescale, rule):
    optimizer = optimizer_of(SparseFW(w=1.0, rescale=rescale), layer(ROWS), 0.1)
    assert all(group["rescale"] == rule for group in optimizer.param_groups)


class TestAnneal:
    def test_k_falls_from_all_to_k_over_the_first_half(self):
        """Ten stages from 20 filters to 4, over 10 of 20 epochs: 1.6 less in each."""
        net = layer([[1.0]] * 20)
        method = SparseFW(k=4, w=1.0, anneal=True)
        optimizer = optimizer_of(method, net, 0.1)
        counts = [regions(optimizer)[0].gauge.k]
        for epoch in range(1, 21):
            method.after_epoch(net, optimizer, epoch, 20)
            counts.append(regions(optimizer)[0].gauge.k)
        assert counts == [20, 18, 17, 15, 14, 12, 10, 9, 7, 6, *[4] * 11]

    @pytest.mark.parametrize("epochs", [2, 5, 20])
    def test_the_last_epoch_is_trained_with_the_goal(self, epochs):
        net = layer([[1.0]] * 20)
        method = SparseFW(k=4, w=1.0, w_start=3.0, anneal=True, over=1.0)
        optimizer = optimizer_of(method, net, 0.1)
        for epoch in range(1, epochs):
            method.after_epoch(net, optimizer, epoch, epochs)
        assert regions(optimizer) == regions(optimizer_of(SparseFW(k=4, w=1.0), layer([[1.0]] * 20), 0.1))

    def test_one_epoch_is_too_short(self):
        with pytest.raises(ConfigError, match=r"train\.epochs=1: .*anneal.* needs at least 2"):
            load_recipe("digits-resnet-filters", ["train.epochs=1", "method.anneal=true"])

    @pytest.mark.parametrize("gauge", ["k-support", "k-sparse"])
    @pytest.mark.parametrize("kind", ["filters", "rank", "weights"])
    def test_the_diameter_stays(self, kind, gauge):
        net = layer([[1.0] * 9] * 8)
        method = SparseFW(kind=kind, k=0.25, w=2.0, anneal=True, gauge=gauge)
        optimizer = optimizer_of(method, net, 0.1)
        before = regions(optimizer)[0].diameter((8, 9, 1, 1))
        method.after_epoch(net, optimizer, 1, 2)
        (after,) = regions(optimizer)
        assert after.gauge.k == max(1, after.count((8, 9, 1, 1)) // 4)
        assert after.diameter((8, 9, 1, 1)) == pytest.approx(before)

    def test_weights_are_pulled_into_the_smaller_regions(self):
        torch.manual_seed(0)
        net = layer(torch.randn(8, 4).tolist())
        method = SparseFW(k=1, w=1.0, anneal=True, over=1.0)
        optimizer = optimizer_of(method, net, 0.01)
        for epoch in range(1, 11):
            net[0].weight.grad = torch.randn_like(net[0].weight)
            optimizer.step()
            (region,) = regions(optimizer)
            assert bool(region.contains(net[0].weight.detach()))
            method.after_epoch(net, optimizer, epoch, 10)

    def test_a_saved_optimizer_goes_on_with_its_schedule(self):
        net = layer([[1.0]] * 20)
        method = SparseFW(k=4, w=1.0, anneal=True)
        first, second = optimizer_of(method, net, 0.1), optimizer_of(method, net, 0.1)
        for epoch in range(1, 6):
            method.after_epoch(net, first, epoch, 20)
        second.load_state_dict(first.state_dict())
        for epoch in range(6, 9):
            method.after_epoch(net, first, epoch, 20)
            method.after_epoch(net, second, epoch, 20)
        assert regions(first) == regions(second)


def test_radius_schedule():
    """w from 3 to 1 in ten stages over half of 20 epochs: the radius with it."""
    net = layer(ROWS)
    method = SparseFW(k=2, w=1.0, w_start=3.0)
    optimizer = optimizer_of(method, net, 0.1)
    goal = regions(optimizer_of(SparseFW(k=2, w=1.0), layer(ROWS), 0.1))[0].radius
    radii = [regions(optimizer)[0].radius / goal]
    for epoch in range(1, 21):
        method.after_epoch(net, optimizer, epoch, 20)
        radii.append(regions(optimizer)[0].radius / goal)
    assert radii == pytest.approx([3.0 - 0.2 * min(i, 10) for i in range(21)])


class TestEverything:
    def test_all_other_tensors_get_balls(self):
        net = build("resnet_digits", width=8)
        optimizer = optimizer_of(SparseFW(k=0.5, w=2.0, everything=True), net, 0.1)
        assert all(group["region"] is not None for group in optimizer.param_groups)
        by_name = {n: g["region"] for g in optimizer.param_groups for n in g["param_names"]}
        scale = next(n for n, m in net.named_modules() if isinstance(m, nn.BatchNorm2d))
        width = net.get_submodule(scale).num_features
        assert by_name[f"{scale}.weight"].name == "LpBall"
        assert by_name[f"{scale}.weight"].radius == pytest.approx(2.0 * width**0.5)
        assert by_name[f"{scale}.bias"].radius == pytest.approx(2.0)  # starts at zero: counts as of norm 1

    def test_for_weights_they_are_of_the_same_kind(self):
        optimizer = optimizer_of(SparseFW(kind="weights", k=0.5, w=2.0, everything=True), build("resnet_digits"), 0.1)
        assert {group["region"].name for group in optimizer.param_groups} == {"KSupportBall"}

    def test_k_sparse_regions_have_the_same_diameters(self):
        diameters = {}
        for gauge in ("k-support", "k-sparse"):
            method = SparseFW(kind="weights", k=0.5, w=2.0, everything=True, gauge=gauge)
            optimizer = optimizer_of(method, build("resnet_digits", width=16), 0.1)
            for group in optimizer.param_groups:
                for name, p in zip(group["param_names"], group["params"], strict=True):
                    diameters.setdefault(name, []).append(group["region"].diameter(p.shape))
        for name, (support, sparse) in diameters.items():
            assert sparse == pytest.approx(support), name


class TestCoupled:
    def test_with_the_other_gauge(self):
        method = SparseFW(k=0.5, w=2.0, coupled=True, gauge="k-sparse")
        optimizer = optimizer_of(method, build("resnet_digits", width=8), 0.1, example=torch.zeros(2, 1, 8, 8))
        assert all(isinstance(region.gauge, KSparse) for region in regions(optimizer))

    def test_depthwise_convolutions_belong_to_their_channels(self):
        net = nn.Sequential(
            nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.Conv2d(6, 6, 3, groups=6), nn.BatchNorm2d(6), nn.Conv2d(6, 3, 1),
            nn.Flatten(), nn.Linear(48, 2),
        )  # fmt: skip
        optimizer = optimizer_of(SparseFW(k=0.5, w=2.0, coupled=True), net, 0.1, example=torch.zeros(2, 1, 8, 8))
        blocks = [set(g["param_names"]) for g in optimizer.param_groups if g["coupled"]]
        assert {"0.weight", "1.weight", "2.weight", "3.weight"} in blocks

    def optimizer(self, net: nn.Module):
        method = SparseFW(k=0.5, w=2.0, coupled=True)
        return optimizer_of(method, net, 0.1, example=torch.zeros(2, 1, 8, 8))

    def test_a_block_is_what_removal_removes(self):
        """The stem and the second convolutions of the first stage write one stream: with their norms they are one block."""
        net = build("resnet_digits", width=8)
        optimizer = self.optimizer(net)
        blocks = [set(g["param_names"]) for g in optimizer.param_groups if g["coupled"]]
        convolutions = {f"{n}.weight" for n, m in net.named_modules() if isinstance(m, nn.Conv2d)}
        norms = {f"{n}.weight" for n, m in net.named_modules() if isinstance(m, nn.BatchNorm2d)}
        assert set.union(*blocks) == convolutions | norms
        assert sum(map(len, blocks)) == len(convolutions | norms)
        assert any(len(block & convolutions) > 1 for block in blocks)
        from sparsefw.compression.structure.trace import find_channels

        writers = [{f"{s.layer}.weight" for s in c.writers} for c in find_channels(net, torch.zeros(2, 1, 8, 8))]
        for block in blocks:
            assert (block & convolutions) in writers

    def test_a_channel_that_is_not_chosen_decays_everywhere(self):
        net = build("resnet_digits", width=8)
        optimizer = self.optimizer(net)
        before = {n: p.detach().clone() for n, p in net.named_parameters()}
        torch.manual_seed(0)
        for p in net.parameters():
            p.grad = torch.randn_like(p)
        optimizer.step()
        group = next(g for g in optimizer.param_groups if g["coupled"] and len(g["params"]) > 2)
        decay = 1 - float(optimizer.diagnostics()[optimizer.param_groups.index(group)].step_size)
        decayed = []
        for name, p in zip(group["param_names"], group["params"], strict=True):
            difference = (p.detach() - decay * before[name]).view(len(p), -1).norm(dim=-1)
            decayed.append(difference <= 1e-5 * before[name].view(len(p), -1).norm(dim=-1))
        together = torch.stack(decayed)
        assert 0 < decay < 1
        assert torch.equal(together.all(0), together.any(0))
        assert int(together[0].sum()) == len(together[0]) - group["region"].gauge.k

    def test_without_an_example_it_is_refused(self):
        with pytest.raises(ConfigError, match="example"):
            optimizer_of(SparseFW(coupled=True), build("resnet_digits"), 0.1)


class Concatenated(nn.Module):
    """As in a DenseNet: a norm reads two branches side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.na = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.b, self.nb = nn.Conv2d(8, 4, 3, padding=1), nn.BatchNorm2d(12)
        self.fc = nn.Linear(12, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x)
        x = torch.cat([x, self.b(torch.relu(self.na(x)))], 1)
        return self.fc(torch.relu(self.nb(x)).mean((2, 3)))


class TestCoupledByDefault:
    def blocks(self, net: nn.Module, **settings: object) -> list[set[str]]:
        optimizer = optimizer_of(SparseFW(**settings), net, 0.1, steps=1000, example=torch.zeros(2, 1, 8, 8))
        names = {p: name for name, p in net.named_parameters()}
        return [{names[p] for p in group["params"]} for group in optimizer.param_groups if group["region"] is not None]

    def test_with_the_horizon_rule_and_only_there(self):
        together = self.blocks(Concatenated())
        assert any({"a.weight", "na.weight"} <= block for block in together)
        assert not any("nb.weight" in block for block in together)  # it has rows of both branches
        assert set.union(*self.blocks(Concatenated(), rescale="gradient", w=1.0)) == {"a.weight", "b.weight"}
        assert set.union(*self.blocks(Concatenated(), coupled=False)) == {"a.weight", "b.weight"}

    def test_scales_of_frozen_convolutions_are_left_alone(self):
        net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.Flatten())
        net.append(nn.Linear(128, 10))
        net[0].weight.requires_grad_(False)
        assert not any("1.weight" in block for block in self.blocks(net))


class TestStickiness:
    def test_filters_are_chosen_by_averaged_norms(self):
        """With a decay of 0.5, norms (4, 1) and then (1, 2) average to (1.5, 1.25): the last alone would choose the second."""
        net = layer([[0.1, 0.0], [0.0, 0.1]])
        optimizer = optimizer_of(SparseFW(rescale="gradient", k=1, w=5.0, stickiness=0.5), net, 0.1)
        for gradient in ([[4.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 2.0]]):
            before = net[0].weight.detach().flatten(1).clone()
            net[0].weight.grad = torch.tensor(gradient)[:, :, None, None]
            optimizer.step()
            after = net[0].weight.detach().flatten(1)
            assert (
                after[0, 0] < 0 < after[1, 1] < before[1, 1]
            )  # the first moved against its gradient, the second decayed
        # scores: (2, 0.5), then (1.5, 1.25)
        torch.testing.assert_close(optimizer.state[net[0].weight]["scores"], torch.tensor([1.5, 1.25]))

    def test_without_stickiness_the_other_filter_is_chosen(self):
        net = layer([[0.1, 0.0], [0.0, 0.1]])
        optimizer = optimizer_of(SparseFW(rescale="gradient", k=1, w=5.0), net, 0.1)
        for gradient in ([[4.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 2.0]]):
            net[0].weight.grad = torch.tensor(gradient)[:, :, None, None]
            optimizer.step()
        assert net[0].weight[1, 1] < 0

    def test_transposed_convolutions_are_chosen_by_the_last_norms(self):
        """Their filters are not contiguous in memory."""
        net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ConvTranspose2d(4, 4, 3))
        optimizer = optimizer_of(SparseFW(k=2, w=1.0, stickiness=0.9), net, 0.1)
        for p in net.parameters():
            p.grad = torch.randn_like(p)
        optimizer.step()
        assert "scores" in optimizer.state[net[0].weight]
        assert "scores" not in optimizer.state[net[1].weight]

    def test_scores_are_saved(self):
        net = layer(ROWS)
        method = SparseFW(k=2, w=1.0, stickiness=0.9)
        first = optimizer_of(method, net, 0.1)
        net[0].weight.grad = torch.randn_like(net[0].weight)
        first.step()
        second = optimizer_of(method, net, 0.1)
        second.load_state_dict(first.state_dict())
        assert torch.equal(first.state[net[0].weight]["scores"], second.state[net[0].weight]["scores"])


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"kind": "2:4", "gauge": "k-sparse"}, "gauge"),
        ({"kind": "2:4", "anneal": True}, "anneal"),
        ({"kind": "rank", "coupled": True}, "coupled"),
        ({"kind": "rank", "stickiness": 0.5}, "stickiness"),
        ({"k": 1.0, "anneal": True}, "anneal=True has no effect here: k=1.0"),
        ({"w": 3.0, "w_start": 3.0}, "w_start=3.0 has no effect here"),
        ({"kind": "weights", "stickiness": 0.5}, "stickiness"),
        ({"over": 0.3}, "over"),
        ({"stickiness": 1.0}, "stickiness"),
        ({"w_start": 0}, "w_start"),
        ({"rescale": "gradients"}, "rescale"),
    ],
)
def test_options_without_effect_are_refused(values, named):
    with pytest.raises(ConfigError, match=named):
        method_from({"name": "sparsefw", **values})
