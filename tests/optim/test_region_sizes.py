"""Sizes and defaults: regions around the weights as given, renewals, k, and networks without norms."""

from __future__ import annotations

import copy
import math
import warnings

import pytest
import torch
from torch import nn

from catalog import gaussian
from optim.small_networks import KINDS, cnn
from sparsefw import SFW, Rule, constrain
from sparsefw import geometry as geo
from sparsefw.optim import Horizon, SFWWarning, Unscaled, initial_norm
from sparsefw.optim.defaults import default_k, has_scale_free_convolutions, unnormalised_depth
from sparsefw.optim.radius import equilibrium_radius


@pytest.mark.parametrize(("share", "rho"), [(0.002, 0.9), (0.01, 0.9), (0.01, 0.5), (0.01, 0.0)])
def test_weights_under_noise_stay_as_long_as_they_are(share, rho):
    """White gradients, a constant share: E ||theta||^2 settles at the norm that the radius was made for."""
    given = 2.0
    region = geo.LpBall(2, equilibrium_radius(given, share, rho))
    theta = gaussian((400,), 0)
    p = nn.Parameter(given * theta / theta.norm())
    optimizer = SFW([{"params": [p], "region": region, "rescale": Unscaled()}], lr=share, momentum=rho)
    lengths = []
    for t in range(int(8 / share)):
        p.grad = gaussian((400,), t + 1)
        optimizer.step()
        if t > 3 / share:
            lengths.append(float(p.detach().norm()))
    assert sum(lengths) / len(lengths) == pytest.approx(given, rel=0.08)


@pytest.mark.parametrize("steps", [1, 150, 40_000])
@pytest.mark.parametrize("kind", KINDS)
def test_building_the_optimizer_changes_nothing(kind, steps):
    """Of networks that have been trained, or start from tiny or huge weights, with any k."""
    for scale in (1.0, 0.05, 40.0):
        model = cnn()
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(scale)
        before = copy.deepcopy(model.state_dict())
        with warnings.catch_warnings():
            warnings.simplefilter("error", SFWWarning)
            groups = constrain(model, kind, steps=steps, k=None if ":" in kind else 1, report=None)
            SFW(groups, lr=0.1)
        assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_regions_grow_with_the_weights_and_shrink_with_the_share():
    small, large = nn.Sequential(nn.Linear(40, 30)), nn.Sequential(nn.Linear(40, 30))
    with torch.no_grad():
        large[0].weight.copy_(8 * small[0].weight)
    radius = [constrain(m, "neurons", steps=4000, report=None)[0]["region"].radius for m in (small, large)]
    assert radius[1] == pytest.approx(8 * radius[0])
    longer = constrain(small, "neurons", steps=64_000, report=None)[0]["region"].radius
    assert longer == pytest.approx(4 * radius[0])  # sixteen times as many steps, the same renewals
    given = float(small[0].weight.detach().norm())
    assert radius[0] == pytest.approx(given * math.sqrt(2 * 0.1 / (1.9 * 0.005)))  # eta = 2 * 10 / 4000, rho = 0.9


def test_which_layers_form_a_group_does_not_depend_on_their_weights():
    """Or the state of an optimizer would not fit one that is made around the trained weights when training is resumed."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(12, 12) for _ in range(5)))
    first = SFW(constrain(model, "neurons", steps=40, report=None))
    with torch.no_grad():
        for i, layer in enumerate(model):
            layer.weight.mul_(1 + i)
    names = [group["param_names"] for group in first.param_groups]
    again = SFW(constrain(model, "neurons", steps=40, report=None))
    assert [group["param_names"] for group in again.param_groups] == names
    again.load_state_dict(first.state_dict())
    assert [g["region"] for g in again.param_groups] == [g["region"] for g in first.param_groups]


def test_a_layer_that_starts_at_zero_gets_a_usual_region():
    model = nn.Sequential(nn.Linear(40, 30))
    usual = constrain(model, "neurons", steps=4000, report=None)[0]["region"].radius
    with torch.no_grad():
        model[0].weight.zero_()
    zero = constrain(model, "neurons", steps=4000, report=None)[0]["region"].radius
    assert zero == pytest.approx(usual, rel=0.05)
    assert zero == pytest.approx(equilibrium_radius(initial_norm(model[0], "weight", model[0].weight), 0.005))

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(3, 3))

    with pytest.raises(
        ValueError, match="weight: starts at zero, and its layer has no default initialisation: give the rule"
    ):
        constrain(Own(), lambda: geo.LpBall(2), steps=10, report=None)


def test_how_often_weights_are_renewed_where_nothing_is_said():
    """20 or 10 times, at most 0.01 a step in convolutions before norms and 0.005 elsewhere: a linear decay sums to T / 2."""

    def renewals(steps, **options):
        model = nn.Sequential(*cnn(), nn.Linear(10, 10), nn.Linear(10, 10))  # the last one is left free
        groups = constrain(model, "weights", steps=steps, report=None, **options)
        renewals = {
            name: group["rescale"].renewals for group in groups if group["region"] for name, _ in group["params"]
        }
        return renewals["3.weight"], renewals["11.weight"]

    assert renewals(40_000) == (20, 10)
    assert renewals(1_000) == (5, 2.5)
    assert renewals(150) == (0.75, 0.375)
    assert renewals(1_000, renewals=3) == (3, 3)
    assert renewals(1_000, renewals=50) == (15, 5)  # 0.03 and 0.01 a step are the most


def test_which_convolutions_have_no_scale():
    assert has_scale_free_convolutions(cnn())
    for norm, expected in ((nn.GroupNorm(4, 8), True), (nn.GroupNorm(1, 8), False), (nn.LayerNorm(8), False)):
        assert has_scale_free_convolutions(nn.Sequential(nn.Conv2d(1, 8, 1), norm)) is expected
    convolutions = [nn.Conv2d(8, 8, 1) for _ in range(3)]
    assert not has_scale_free_convolutions(nn.Sequential(*convolutions, nn.Flatten(), nn.BatchNorm1d(8)))


def test_more_may_grow_in_short_trainings():
    assert [default_k(geo.Groups(), steps) for steps in (100, 1_000, 5_000)] == [0.8, 0.6, 0.3]
    assert [default_k(geo.Spectrum(), steps) for steps in (100, 1_000, 5_000)] == [0.8, 0.4, 0.2]
    assert [default_k(geo.Elements(), steps) for steps in (100, 1_000, 5_000)] == [0.8, 0.4, 0.1]


def test_rules_leave_open_what_is_chosen_for_them():
    rules = [
        Rule("0.weight", "filters", k=2, radius=5.0),
        Rule("3.weight", geo.GroupKSupportBall),
        Rule("*", "rank", k=0.5),
    ]
    said = []
    groups = constrain(cnn(), rules, steps=4000, renewals=2, report=said.append)
    group_of = {name: group for group in groups for name, _ in group["params"]}
    assert group_of["0.weight"]["region"] == geo.GroupKSupportBall(2, 5.0)
    assert group_of["3.weight"]["region"].gauge.k == 4  # 0.3 of 16
    assert group_of["6.weight"]["region"].gauge.k == 8
    assert all(group["rescale"] == Horizon(4000, 2) for group in groups if group["region"] is not None)
    assert "weights are renewed 2 times in 4000 steps\nregions are sized from the weights as given" in said[0]
    constrain(cnn(), "filters", steps=4000, w=3.0, report=said.append)
    assert "w = 3 (of little effect here: norms take the scale of these weights away)" in said.pop()
    constrain(cnn(), "weights", steps=4000, w=3.0, report=said.append)
    assert "w = 3" in said.pop().splitlines()  # the classifier is among them
    constrain(cnn(), "filters", steps=100, renewals=20, report=said.append)
    assert "weights are renewed 1.5 times in 100 steps (renewals=20 is more than is safe in so few steps)" in said[1]


def test_what_cannot_be_sized_is_refused_in_one_line():
    model = nn.Sequential(nn.Linear(4, 4))
    with torch.no_grad():
        model[0].weight[0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"^0\.weight: contains NaN or inf before the first step$"):
        constrain(model, "neurons", steps=10, report=None)
    with pytest.raises(ValueError, match=r"^0\.weight: a lazy parameter has no shape yet"):
        constrain(nn.Sequential(nn.LazyLinear(4)), "neurons", steps=10, report=None)


def test_regions_depend_on_the_momentum_and_both_are_told_the_same():
    model = cnn()
    sized = {rho: constrain(model, "filters", steps=1000, momentum=rho, report=None) for rho in (0.0, 0.9)}
    shrunk = math.sqrt(
        (1 - 0.9) / (1 + 0.9)
    )  # of the length, by the formula; rounded up where weights would be outside
    assert sized[0.9][0]["region"].radius == pytest.approx(shrunk * sized[0.0][0]["region"].radius, rel=0.05)
    assert SFW(sized[0.0], momentum=0.0).param_groups[0]["momentum"] == 0.0
    with pytest.raises(
        ValueError, match=r"momentum=0\.9, but the regions were sized for 0: pass the same value to constrain"
    ):
        SFW(sized[0.0], momentum=0.9)
    with pytest.raises(ValueError, match=r"momentum must be a number of at least 0 and below 1, got 1\.5"):
        constrain(model, "filters", steps=1000, momentum=1.5, report=None)


@pytest.mark.filterwarnings("ignore:Initializing zero-element")
def test_a_layer_without_inputs_is_refused_in_one_line():
    with pytest.raises(ValueError, match=r"^weight: "):
        constrain(nn.Linear(0, 4), "weights", steps=10, report=None)


def stack_of(layers: int, gain: float = 1.0) -> nn.Sequential:
    parts = [part for _ in range(layers - 1) for part in (nn.Linear(32, 32), nn.ReLU())]
    model = nn.Sequential(*parts, nn.Linear(32, 4))
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(gain)
    return model


def rates_and_radii(model: nn.Module, steps: int, **settings) -> list[tuple[float, float]]:
    groups = constrain(model, "neurons", steps=steps, report=None, **settings)
    return [(group["rescale"].rate, group["region"].radius) for group in groups if group["region"] is not None]


@pytest.mark.parametrize(("layers", "step_of_he"), [(4, 0.018 / 3), (7, 0.018 / 6), (31, 0.018 / 30)])
def test_layers_in_a_row_without_norms_take_smaller_steps_the_more_they_are(layers, step_of_he):
    """A step has the length rate * radius: at most this part of He's length, entries of variance 2 / fan_in."""
    he = math.sqrt(2 * 32)
    for rate, radius in rates_and_radii(stack_of(layers), steps=1000):
        assert rate * radius <= step_of_he * he * 1.001
        assert rate <= 0.005


def test_weights_in_a_deep_network_without_norms_may_grow_eightfold():
    model = stack_of(7)
    norms = [float(layer.weight.detach().norm()) for layer in model if isinstance(layer, nn.Linear)]
    radii = [radius for _, radius in rates_and_radii(model, steps=1000)]
    assert radii == [pytest.approx(8 * norm, rel=1e-6) for norm in norms[:-1]]


def test_long_weights_take_smaller_steps_than_short_ones():
    """In a deep network without norms: from He's length on, steps shrink with nothing but the depth."""
    short, he, long = (rates_and_radii(stack_of(7, gain), steps=1000)[0][0] for gain in (1.0, 2.5, 5.0))
    assert short == pytest.approx(0.018 / 6 / 8 * math.sqrt(6), rel=0.05)  # the norms of drawn weights differ a little
    assert he == long == pytest.approx(0.018 / 6 / 8)


def test_few_layers_or_norms_between_them_lift_the_limit():
    with_norms = [part for _ in range(11) for part in (nn.Linear(32, 32), nn.LayerNorm(32), nn.ReLU())]
    blocks = [nn.Sequential(*with_norms, nn.Linear(32, 4)), stack_of(3)]
    assert {rate for model in blocks for rate, _ in rates_and_radii(model, steps=1000)} == {0.005}
    norm_at_the_end = nn.Sequential(stack_of(12), nn.LayerNorm(4))  # eleven layers still multiply
    assert rates_and_radii(norm_at_the_end, 1000) == rates_and_radii(norm_at_the_end[0], 1000)


def test_renewals_by_request_are_limited_as_in_any_other_network():
    assert {rate for rate, _ in rates_and_radii(stack_of(7), steps=1000, renewals=50)} == {0.01}


def test_a_region_of_the_users_own_size_takes_the_usual_steps():
    """Smaller regions have smaller steps already: only those sized from the weights are eight times as large."""
    assert {rate for rate, _ in rates_and_radii(stack_of(7), steps=1000, w=2.0)} == {0.005}


def test_norms_of_ones_own_are_norms():
    class MyRMSNorm(nn.Module):
        def forward(self, x):
            return x / x.square().mean(-1, keepdim=True).sqrt()

    layers = [part for _ in range(11) for part in (nn.Linear(32, 32), MyRMSNorm(), nn.ReLU())]
    assert {rate for rate, _ in rates_and_radii(nn.Sequential(*layers, nn.Linear(32, 4)), steps=1000)} == {0.005}


def test_norms_of_weights_are_no_norms_of_activations():
    """weight_norm adds a module _WeightNorm to each layer, which does not keep layers from multiplying."""
    model = stack_of(7)
    for layer in model[:-1:2]:
        nn.utils.parametrizations.weight_norm(layer)
    assert unnormalised_depth(model) == unnormalised_depth(stack_of(7)) == 7


def test_convolutions_before_norms_may_grow_as_ever_beside_a_deep_head_without():
    norms = [part for _ in range(3) for part in (nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4))]
    model = nn.Sequential(*norms, nn.Flatten(), *stack_of(20))
    alone = nn.Sequential(*norms, nn.Flatten(), nn.Linear(4, 4))
    regions = [constrain(net, "filters", steps=5000, report=None)[0]["region"] for net in (model, alone)]
    assert regions[0] == regions[1]


def test_the_table_says_that_a_deep_network_without_norms_takes_small_steps():
    assert "7 layers follow each other without a norm" in str(
        constrain(stack_of(7), "neurons", steps=1000, report=None)
    )
    assert "follow each other" not in str(constrain(stack_of(3), "neurons", steps=1000, report=None))


def test_deep_networks_without_norms_are_left_free_where_they_would_hardly_decay():
    """0.018 / 6 / 8 in a step of seven layers, falling linearly: 0.1 renewals in 533 steps, whatever the weights are."""
    for gain in (0.1, 1.0, 10.0):
        free = constrain(stack_of(7, gain), "neurons", steps=533, report=None)
        assert {group["region"] for group in free} == {None}
        assert "one of 7 layers without a norm between them, hardly decays in 533 steps" in str(free)
        assert len(rates_and_radii(stack_of(7, gain), steps=534)) == 6
    assert len(rates_and_radii(stack_of(7), steps=100, renewals=0.01)) == 6
    assert len(constrained_names(stack_of(7), "neurons", w=2.0)) == 6
    assert len(rates_and_radii(stack_of(3), steps=100)) == 2


def test_a_word_leaves_the_output_free_and_a_rule_that_names_it_does_not():
    model = stack_of(3)
    names = lambda groups: [n for group in groups if group["region"] is not None for n, _ in group["params"]]  # noqa: E731
    assert names(constrain(model, "neurons", steps=100, report=None)) == ["0.weight", "2.weight"]
    assert "taken for the output" in str(constrain(model, "weights", steps=100, report=None))
    assert names(constrain(model, Rule("4.weight", "neurons"), steps=100, report=None)) == ["4.weight"]
    assert names(constrain(model, "neurons", k=0.5, w=1.0, report=None)) == [
        "0.weight",
        "2.weight",
        "4.weight",
    ]  # the paper's
    assert names(constrain(nn.Linear(4, 4), "neurons", steps=100, report=None)) == ["weight"]  # all there is


def constrained_names(model: nn.Module, *rules: object, **settings) -> list[str]:
    groups = constrain(model, *rules, steps=100, report=None, **settings)
    return [name for group in groups if group["region"] is not None for name, _ in group["params"]]


def test_the_output_is_free_under_every_name_and_every_way_to_say_all_layers():
    tied = stack_of(3)
    tied[4] = nn.Linear(32, 32)
    tied[4].weight = tied[0].weight
    assert constrained_names(tied, "neurons") == ["2.weight"]
    assert constrained_names(stack_of(3), Rule(("*",), "neurons")) == ["0.weight", "2.weight"]


def test_the_output_is_constrained_where_a_rule_means_particular_layers():
    every = ["0.weight", "2.weight", "4.weight"]
    assert constrained_names(stack_of(3), Rule("*", "neurons", types=(nn.Linear,))) == every
    square = nn.Sequential(*[nn.Linear(8, 8) for _ in range(3)])
    assert constrained_names(square, Rule("*", "neurons", coupled=True)) == ["0.weight", "1.weight", "2.weight"]


def test_heads_of_the_last_attention_are_constrained_too():
    model = nn.ModuleList([nn.MultiheadAttention(16, 4) for _ in range(2)])
    assert constrained_names(model, "heads") == ["0.out_proj.weight", "1.out_proj.weight"]


def test_the_momentum_of_constrain_is_that_of_sfw():
    optimizer = SFW(constrain(stack_of(3), "neurons", steps=100, momentum=0.95, report=None), lr=0.1)
    assert {group["momentum"] for group in optimizer.param_groups} == {0.95}
    assert {
        group["momentum"] for group in SFW(constrain(stack_of(3), "neurons", k=2, w=1.0, report=None)).param_groups
    } == {0.9}
    with pytest.raises(ValueError, match=r"momentum=0\.95 has no effect without steps: pass it to SFW"):
        constrain(stack_of(3), "neurons", k=2, w=1.0, momentum=0.95, report=None)


def test_outputs_of_any_scale_can_be_learned():
    """A regression on raw targets: a region around the last layer would keep the network from their size."""
    torch.manual_seed(0)
    x = torch.randn(256, 8)
    y = 300 * x[:, :1] + 1000
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = SFW(constrain(model, "neurons", steps=400, report=None), lr=0.01, rest="adamw", rest_lr=3.0)
    for _ in range(400):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        assert float((model(x) - y).var() / y.var()) < 0.2


@pytest.mark.parametrize("kind", ["filters", "rank", "weights"])
def test_weights_in_channels_last_that_are_larger_than_their_region_are_inside(kind):
    model = nn.Sequential(*(nn.Conv2d(5, 5, 3) for _ in range(5))).to(memory_format=torch.channels_last)
    groups = constrain(model, kind, k=1, steps=20, report=None)
    for group in groups:
        for _, p in group["params"] if group["region"] is not None else ():
            assert bool(group["region"].contains(p.detach()))
