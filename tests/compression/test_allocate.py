"""Allocation: one level for all layers, and a higher one never keeps more anywhere."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sparsefw.compression import compress
from sparsefw.compression.allocate import (
    ALLOCATIONS,
    Energy,
    Global,
    Sensitivity,
    Uniform,
    UnitSet,
    Worst,
    smallest_level,
)
from sparsefw.compression.artifact.plan import Keep, Split, Truncate
from sparsefw.compression.kinds.stage import Stage
from sparsefw.compression.kinds.weights import SparseWeights
from sparsefw.compression.settings import Selection

BY_MAGNITUDE = [name for name, rule in ALLOCATIONS.items() if rule is not Sensitivity]


def unit(*magnitudes: float, name: str = "layer", groups: int = 1) -> UnitSet:
    return UnitSet(name, torch.tensor(magnitudes, dtype=torch.float64), groups)


units = st.lists(
    st.lists(st.sampled_from([0.0, 1e-20, 0.1, 0.5, 0.5, 1.0, 3.0, 100.0]), min_size=1, max_size=20),
    min_size=1,
    max_size=4,
).map(lambda lists: [unit(*values, name=f"layer{i}") for i, values in enumerate(lists)])
levels = st.tuples(st.floats(0, 1), st.floats(0, 1)).map(sorted)
damages = st.lists(st.floats(0, 10) | st.just(math.inf), min_size=4, max_size=4)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(BY_MAGNITUDE), units, levels)
def test_a_higher_level_never_keeps_more(name, layers, pair):
    low, high = (ALLOCATIONS[name]().kept(layers, level) for level in pair)
    assert all(0 <= b <= a <= u.count for a, b, u in zip(low, high, layers, strict=True))


@settings(max_examples=150, deadline=None)
@given(units, st.data(), levels)
def test_a_higher_level_never_keeps_more_by_sensitivity(layers, data, pair):
    ratios = (0.25, 0.5, 0.75, 0.9)
    rule = Sensitivity({u.name: list(zip(ratios, data.draw(damages), strict=True)) for u in layers})
    low, high = (rule.kept(layers, level) for level in pair)
    assert all(0 <= b <= a <= u.count for a, b, u in zip(low, high, layers, strict=True))


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 6), st.integers(1, 12), st.sampled_from([1, 2, 4, 8, 16]), st.data())
def test_rounding(groups, per_group, round_to, data):
    """The same number from every block, at least one and at most all, multiples where there are enough; still monotone."""
    one = unit(*[1.0] * (groups * per_group), groups=groups)
    a, b = sorted(data.draw(st.tuples(*[st.integers(0, one.count)] * 2)))
    low, high = one.rounded(a, round_to), one.rounded(b, round_to)
    assert low <= high
    for kept in (low, high):
        assert kept % groups == 0
        assert groups <= kept <= one.count
        assert kept % round_to == 0 or kept == one.count
    if round_to == 1 and a % groups == 0 and a > 0:
        assert low == a


@pytest.mark.parametrize(
    "kept, round_to, result",
    [(8, 8, 8), (9, 8, 16), (15, 8, 16), (3, 8, 8), (0, 8, 8), (17, 8, 20), (23, 8, 20), (5, 1, 5), (0, 1, 1)],
)
def test_rounding_never_removes_more_than_asked(kept, round_to, result):
    assert unit(*[1.0] * 20).rounded(kept, round_to) == result


def test_rounding_counts_all_groups_together():
    """Eight of two groups are four of each."""
    assert unit(*[1.0] * 32, groups=2).rounded(10, 8) == 16
    assert unit(*[1.0] * 24, groups=3).rounded(10, 4) == 12


class Nothing(Stage):
    def __init__(self, allocation, layers: list[UnitSet], round_to: int) -> None:
        self.allocation = allocation
        self.unit_sets = layers
        self.selection = Selection(round_to=round_to)

    @classmethod
    def of(cls, request):
        raise NotImplementedError

    @classmethod
    def restored(cls, kind, model, record):
        raise NotImplementedError

    def edits(self, counts):
        return []

    def in_place(self):
        raise NotImplementedError


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(BY_MAGNITUDE), units, st.sampled_from([1, 4]), levels)
def test_level_zero_keeps_everything_and_every_level_something(name, layers, round_to, pair):
    stage = Nothing(ALLOCATIONS[name](), layers, round_to)
    assert stage.counts(0.0) == [u.count for u in layers]
    assert stage.removed_share(stage.counts(0.0)) == 0
    low, high = (stage.counts(level) for level in pair)
    assert all(1 <= b <= a for a, b in zip(low, high, strict=True))
    assert stage.removed_share(low) <= stage.removed_share(high)


def test_uniform_takes_the_same_fraction():
    assert Uniform().kept([unit(*range(10)), unit(*range(100))], 0.3) == [7, 70]


def test_energy_by_hand():
    """Squares 1, 4, 9, 16 of sum 30: the smallest ones go as long as their sum is allowed."""
    layers = [unit(1, 2, 3, 4), unit(4, 1, 3, 2), unit(10, 20, 30, 40)]
    for level, kept in ((0.0, 4), (0.9 / 30, 4), (1.1 / 30, 3), (4.9 / 30, 3), (5.1 / 30, 2), (14.1 / 30, 1), (1.0, 0)):
        assert Energy().kept(layers, level) == [kept] * 3


def test_worst_by_hand():
    """What goes is at most that much of the layer's largest."""
    layers = [unit(1, 2, 3, 4), unit(40, 10, 30, 20), unit(4, 4, 4, 4)]
    assert Worst().kept(layers, 0.2) == [4, 4, 4]
    assert Worst().kept(layers, 0.26) == [3, 3, 4]
    assert Worst().kept(layers, 0.74) == [2, 2, 4]
    assert Worst().kept(layers, 1.0) == [0, 0, 0]


def test_global_by_hand():
    """Divided by their means 1 and 15: four times 1, and 2/3 three times besides 2."""
    layers = [unit(1, 1, 1, 1), unit(10, 30, 10, 10)]
    assert Global().kept(layers, 3 / 8) == [4, 1]
    assert Global().kept(layers, 0.0) == [4, 4]
    assert Global().kept(layers, 7 / 8) == [0, 1]
    assert Global().kept(layers, 1.0) == [0, 0]


def test_exactly_the_ratio_goes_of_equal_magnitudes():
    layers = [unit(*[2.0] * 5), unit(*[7.0] * 5)]
    for removed in range(11):
        assert sum(Global().kept(layers, removed / 10)) == 10 - removed
    assert Global().kept([unit(*[1.0] * 100)], 0.29) == [71]  # 0.29 * 100 is 28.999... in floats


def test_zero_layers_do_not_divide_by_zero():
    layers = [unit(0, 0), unit(1, 1)]
    for rule in (Global(), Energy(), Worst()):
        assert all(0 <= k <= 2 for k in rule.kept(layers, 0.5))


def test_sensitivity_by_hand():
    damage = {"a": [(0.5, 1.0), (0.9, 3.0)], "b": [(0.9, 2.0), (0.5, 0.0)], "c": [(0.5, 3.0), (0.9, 1.0)]}
    layers = [unit(*range(20), name=name) for name in "abc"]
    rule = Sensitivity(damage)
    # Of at most 3.0 a third is allowed. a: 0.5. b: half way from 0.5 to 0.9. c: a third of the way to 0.5.
    assert rule.kept(layers, 1 / 3) == [10, 6, 20 - 3]
    # Two thirds: a half way from 0.5 to 0.9; b all of 0.9; c two thirds of 0.5, since damage never falls.
    assert rule.kept(layers, 2 / 3) == [6, 2, 20 - 6]
    assert rule.kept(layers, 1.0) == [2, 2, 2]
    assert rule.kept(layers, 0.0) == [20, 10, 20]  # what harms nothing


def test_damage_never_falls():
    """Measured 2.0 at a quarter and 0.0 at a half, it is taken as 2.0 at both; from there half way to 4.0 at 0.9."""
    rule = Sensitivity({"a": [(0.25, 2.0), (0.5, 0.0), (0.9, 4.0)]})
    assert rule.kept([unit(*range(10), name="a")], 0.75) == [3]
    assert Sensitivity({"a": [(0.29, 1.0)]}).kept([unit(*range(100), name="a")], 1.0) == [71]


def test_ratios_that_break_the_output_are_never_allowed():
    rule = Sensitivity({"a": [(0.5, 1.0), (0.9, math.inf)], "b": [(0.5, 0.5), (0.9, 1.0)]})
    layers = [unit(*range(10), name=name) for name in "ab"]
    assert rule.kept(layers, 0.5) == [8, 5]
    assert rule.kept(layers, 1.0) == [5, 1]


@given(st.floats(0, 1))
def test_smallest_level(threshold):
    level = smallest_level(lambda level: level >= threshold)
    assert level is not None
    assert threshold <= level <= threshold + 1e-8
    assert smallest_level(lambda level: False) is None


# compress(..., allocation=...)


def network() -> nn.Module:
    """Layers whose filters differ in how unequal they are."""
    torch.manual_seed(0)
    widths = (3, 24, 24, 24, 4)
    layers: list[nn.Module] = []
    for i, (a, b) in enumerate(itertools.pairwise(widths)):
        layers += [nn.Conv2d(a, b, 3, padding=1), nn.ReLU()]
        with torch.no_grad():
            layers[-2].weight.mul_(torch.linspace(0.1, 1, b).pow(i).view(-1, 1, 1, 1))
    return nn.Sequential(*layers[:-1])


X = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
NAMES = list(ALLOCATIONS)


@pytest.mark.parametrize("allocation", NAMES)
@pytest.mark.parametrize("ratio", [0.25, 0.5, 0.8])
def test_about_as_many_channels_go_as_asked(allocation, ratio):
    small = compress(network(), filters=ratio, allocation=allocation, example=X)
    kept = [len(e.kept) for e in small.plan.edits if isinstance(e, Keep) and e.side == "out"]
    widths = kept + [24] * (3 - len(kept))  # a layer that loses nothing is not in the plan
    assert min(widths) >= 1
    assert 1 - sum(widths) / 72 == pytest.approx(ratio, abs=3.1 / 72)


def test_allocations_take_most_from_the_layer_with_the_most_unequal_filters():
    """The last hidden layer has the most unequal filters; uniform does not care."""
    for allocation in ("global", "energy", "worst"):
        model = compress(network(), filters=0.5, allocation=allocation, example=X).model
        assert model[0].out_channels > model[4].out_channels, allocation
    model = compress(network(), filters=0.5, allocation="uniform", example=X).model
    assert [model[i].out_channels for i in (0, 2, 4)] == [12, 12, 12]


def test_sensitivity_spares_the_layer_that_matters():
    """Everything passes through two channels of the first layer; of the second almost nothing reaches the output."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
    with torch.no_grad():
        net[4].weight[:, 1:].mul_(1e-3)
    x = torch.randn(64, 4)
    ratios = {}
    for allocation in ("uniform", "sensitivity"):
        small = compress(net, filters=0.5, allocation=allocation, calibration=[x], refit=False, score="activation")
        ratios[allocation] = {e.layer: len(e.kept) for e in small.plan.edits if isinstance(e, Keep) and e.side == "out"}
    assert ratios["uniform"] == {"0": 8, "2": 8}
    assert ratios["sensitivity"]["2"] < 8 < ratios["sensitivity"].get("0", 16)


@pytest.mark.parametrize("allocation", NAMES)
def test_rank_and_weights_too(allocation):
    small = compress(network(), rank=0.6, allocation=allocation, example=X)
    ranks = {e.layer: e.rank for e in small.plan.edits if isinstance(e, (Split, Truncate))}
    kept = sum(ranks.get(name, 24) for name in "024")
    assert 1 - kept / 72 == pytest.approx(0.6, abs=3.1 / 72)
    stage = SparseWeights(network(), Uniform(), Selection())
    total = sum(u.count for u in stage.unit_sets)
    small = compress(network(), weights=0.6, allocation=allocation, example=X)
    zeros = sum(int((m.weight == 0).sum()) for m in small.model if isinstance(m, nn.Conv2d))
    assert zeros / total == pytest.approx(0.6, abs=0.01)


def test_round_to():
    def widths(model: nn.Module) -> list[int]:
        return [m.out_channels for m in model if isinstance(m, nn.Conv2d)]

    for allocation in NAMES:
        small = compress(network(), filters=0.5, allocation=allocation, round_to=8, example=X).model
        assert all(w % 8 == 0 for w in widths(small)[:-1]), allocation
        assert widths(small)[-1] == 4


@pytest.mark.parametrize("allocation", NAMES)
@pytest.mark.parametrize("ratio", [0.2, 0.4, 0.6])
def test_multiples_never_remove_more_than_asked(allocation, ratio):
    """In sum; without multiples, to within a channel."""
    small = compress(network(), filters=ratio, allocation=allocation, round_to=4, example=X)
    assert small.plan.request["removed"]["filters"] <= ratio + 1e-9
