"""Targets: the least compression that meets them, and one line where none does."""

from __future__ import annotations

import itertools
import math
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from compression.networks import unnormed as network
from sparsefw.compression import compress
from sparsefw.compression.allocate import ALLOCATIONS
from sparsefw.compression.artifact.plan import Keep, Split
from sparsefw.compression.cost import costs
from sparsefw.compression.pipeline import Pipeline
from sparsefw.compression.settings import Settings
from sparsefw.compression.target import MOST, Target, UnreachableError, least_compression, most_compression
from sparsefw.kinds import kind_of

STEP = MOST / 2**14  # how finely the level is searched for
METRICS = {"params": "parameters", "macs": "macs", "bytes": "bytes"}
X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


# Words


@pytest.mark.parametrize(
    "text, metric, value",
    [
        ("params=0.3", "params", 0.3),
        (" macs = 1 ", "macs", 1.0),
        ("bytes=5e-2", "bytes", 0.05),
        ("drop=0", "drop", 0.0),
    ],
)
def test_targets_are_parsed(text, metric, value):
    assert Target.parse(text) == Target(metric, value)


@pytest.mark.parametrize(
    "text, dense, share",
    [
        ("params=30k", 120_000, 0.25),
        ("params=0.03M", 120_000, 0.25),
        ("macs=1.5 G", 3e9, 0.5),
        ("bytes=100kB", 400_000, 0.25),
        ("bytes=1KiB", 4096, 0.25),
        ("bytes=512B", 1024, 0.5),
        ("latency=2ms", 8.0, 0.25),
        ("latency=500us", 1.0, 0.5),
        ("params=30%", 77, 0.3),
        ("params=0.3", 77, 0.3),
        ("drop=1pt", 96.0, 1.0),  # of a metric in percent
        ("drop=1pt", 0.96, 0.01),  # of a metric that is a fraction
        ("drop=2%", 50.0, 1.0),  # of the metric
        ("drop=0.5", 96.0, 0.5),  # in the metric's own units
    ],
)
def test_units(text, dense, share):
    target = Target.parse(text)
    assert target.of_dense(dense).value == pytest.approx(share)
    assert str(target.of_dense(dense)) == str(target) == text.replace(" ", "")


@pytest.mark.parametrize("dense", [0.0, -3.0, 250.0])
@pytest.mark.parametrize("text", ["drop=1%", "drop=1pt"])
def test_there_is_no_percentage_of_a_metric_that_is_no_share(text, dense):
    with pytest.raises(ValueError, match=rf"^target {text}: the dense model's metric is {dense:g}, [^\n]*own units"):
        Target.parse(text).of_dense(dense)


@pytest.mark.parametrize(
    "text, says",
    [
        ("params", "write one of params=0.3, macs=0.3, bytes=0.3, latency=0.3, drop=0.01"),
        ("size=0.3", "write one of"),
        ("", "write one of"),
        ("=0.3", "write one of"),
        ("params:0.3", "write one of"),
        ("params=", "'' is not a number"),
        ("params=half", "'half' is not a number"),
        ("params=0.3=0.4", "'0.3=0.4' is not a number"),
        ("param=30k", "did you mean 'params'?"),
        ("params=30", "must be in (0, 1]; other numbers have a unit: params=30k"),
        ("latency=2", "other numbers have a unit: latency=2ms"),
        ("params=30kB", "'kB' is not a unit of params; did you mean 'k'?; there are %, k, K, M, G"),
        ("bytes=30k", "'k' is not a unit of bytes"),
        ("params=1m", "'m' is not a unit of params"),
        ("latency=2min", "'min' is not a unit of latency"),
        ("drop=1ms", "'ms' is not a unit of drop"),
        ("params=130%", "must be in (0, 100] %"),
        ("params=0k", "must be above 0"),
        ("params=-5k", "must be above 0"),
        ("drop=-1pt", "must be at least 0"),
        ("params=0", "must be in (0, 1]"),
        ("params=-0.1", "must be in (0, 1]"),
        ("macs=1.01", "must be in (0, 1]"),
        ("bytes=30", "must be in (0, 1]"),
        ("latency=nan", "must be in (0, 1]"),
        ("params=inf", "must be in (0, 1]"),
        ("drop=-0.1", "must be at least 0"),
        ("drop=nan", "must be at least 0"),
    ],
)
def test_texts_that_are_not_targets_are_refused(text, says):
    with pytest.raises(ValueError, match=rf"^target {re.escape(repr(text))}: [^\n]*{re.escape(says)}[^\n]*$"):
        compress(network(), target=text, example=X)


def test_contradictory_targets_are_refused():
    with pytest.raises(ValueError, match=r"^target drop= needs evaluate="):
        compress(network(), target="drop=0.1", example=X)
    with pytest.raises(ValueError, match="unknown kind 'layers'"):
        compress(network(), target="params=0.5", by="layers", example=X)
    with pytest.raises(
        ValueError, match=r"^rank= and target= both set how much of the rank is removed: give one, or another by=$"
    ):
        compress(network(), target="params=0.5", by=("filters", "rank"), rank=0.5, example=X)


# The search


@given(st.floats(0, 1), st.floats(0, 1))
def test_least_compression(slope_at, value):
    """share falls from 1 to 0.1 at some level."""
    seen = []

    def share(level: float) -> float:
        seen.append(level)
        return 1.0 if level < slope_at * MOST else 0.1

    target = Target("params", value)
    if value < 0.1:
        with pytest.raises(UnreachableError, match=r"params=.* cannot be reached: .* is 0\.1 of the dense model$"):
            least_compression(share, target)
        return
    level = least_compression(share, target)
    assert level == 0 or slope_at * MOST <= level <= slope_at * MOST + STEP
    assert share(level) <= value
    assert all(0 <= one <= MOST for one in seen)


@given(st.floats(0, 1))
def test_most_compression(breaks_at):
    target = Target("drop", 0.5)
    level = most_compression(lambda level: 0.0 if level <= breaks_at * MOST else 1.0, target)
    assert level <= breaks_at * MOST or level == 0
    assert level >= breaks_at * MOST - MOST / 2**7
    assert most_compression(lambda level: math.nan, target) == 0


# Parameters, MACs and bytes


def share(small, metric: str) -> float:
    return getattr(small.costs, METRICS[metric]) / getattr(small.dense, METRICS[metric])


@pytest.mark.parametrize("value", [0.9, 0.5, 0.2])
@pytest.mark.parametrize("by", ["filters", "rank", ("filters", "rank"), ("filters", "rank", "weights")], ids=str)
@pytest.mark.parametrize("metric", ["params", "macs", "bytes"])
def test_met_with_the_least_compression(metric, by, value):
    small = compress(network(), target=f"{metric}={value}", by=by, example=X)
    level = small.plan.request["level"]
    assert share(small, metric) <= value
    # Not compress(rank=...), which truncates weights that it does not split, too.
    kinds = [kind_of(name) for name in ((by,) if isinstance(by, str) else by)]
    pipeline = Pipeline(network(), Settings(example=X), driven=kinds)
    less, _ = pipeline.compress(dict.fromkeys(kinds, max(0.0, level - 2 * STEP)))
    assert getattr(costs(less, X), METRICS[metric]) > value * getattr(small.dense, METRICS[metric])
    assert small.plan.request["target"] == f"{metric}={value}"


@pytest.mark.parametrize("value", [0.9, 0.3, 0.1])
def test_bytes_by_weights_to_within_a_few(value):
    small = compress(network(), target=f"bytes={value}", by="weights", example=X)
    total = small.dense.parameters
    assert value - 4 * 4 * STEP * total / small.dense.bytes - 1e-3 <= share(small, "bytes") <= value


@pytest.mark.parametrize("target", ["params=3k", "macs=100k", "bytes=9kB", "latency=1s"])
def test_absolute_targets_are_met_with_the_least_compression(target):
    metric, _, amount = target.partition("=")
    small = compress(network(), target=target, example=X)
    assert small.plan.request["target"] == target
    assert f"for {target}" in str(small)
    if metric == "latency":  # a second is more than the dense network takes
        assert small.costs == small.dense
        return
    most = {"3k": 3000, "100k": 100_000, "9kB": 9000}[amount]
    same = compress(network(), target=f"{metric}={most / getattr(small.dense, METRICS[metric])!r}", example=X)
    assert getattr(small.costs, METRICS[metric]) <= most
    assert small.costs == same.costs


def test_an_unreachable_absolute_target_names_one_that_is_reachable():
    with pytest.raises(UnreachableError) as error:
        compress(network(), target="params=0.01k", example=X)
    nearest = re.findall(r"params=[\d.]+k", str(error.value))[1]  # behind the one that was asked for
    assert compress(network(), target=nearest, example=X).costs.parameters <= float(nearest[7:-1]) * 1000


def test_within_one_channel():
    """Of 24 channels in each of three layers one more or less is the unit."""
    small = compress(network(), target="params=0.5", example=X)
    widths = [small.model[i].weight.shape[0] for i in (0, 2, 6)]
    one_more = [w + 1 for w in widths]
    sizes = [
        sum(a * b * k + b for a, b, k in zip((3, *w), (*w, 4), (9, 9, 1, 1), strict=True)) for w in (widths, one_more)
    ]
    assert sizes[0] == small.costs.parameters <= small.dense.parameters / 2 < sizes[1]


def test_one_kind_driven_another_given():
    small = compress(network(), target="params=0.3", by="rank", filters=0.25, example=X)
    assert share(small, "params") <= 0.3
    widths = {e.layer: len(e.kept) for e in small.plan.edits if isinstance(e, Keep) and e.side == "out"}
    assert widths == {"0": 18, "2": 18, "6": 18}
    assert any(isinstance(e, Split) for e in small.plan.edits)
    assert small.plan.request["filters"] == 0.25


@pytest.mark.parametrize("calibrated", [False, True])
def test_still_met_after_refit(calibrated):
    for metric, by in (("bytes", "weights"), ("params", "filters"), ("bytes", ("rank", "weights"))):
        small = compress(
            network(), target=f"{metric}=0.4", by=by, example=X, calibration=[X] * 2 if calibrated else None
        )
        assert share(small, metric) <= 0.4


@pytest.mark.parametrize("metric, by", [("params", "filters"), ("macs", "rank"), ("bytes", "weights")])
def test_an_unreachable_target_names_the_smallest_reachable_one(metric, by):
    with pytest.raises(UnreachableError, match=rf"^target {metric}=0.001 cannot be reached: [^\n]*$") as error:
        compress(network(), target=f"{metric}=0.001", by=by, example=X)
    named = float(re.search(r"is ([\d.e-]+) of the dense model", str(error.value))[1])
    assert named == pytest.approx(share(compress(network(), **{by: MOST}, example=X), metric), rel=1e-3)
    assert isinstance(error.value, ValueError)


def bottleneck() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 4), nn.ReLU(), nn.Linear(4, 1000))


@pytest.mark.parametrize(
    ("target", "options", "words"),
    [
        (
            "params=0.3",
            {},
            "smallest is 0.3987 of the dense model; the largest parts of it: 2 0.397 (the model's output)",
        ),
        ("bytes=0.3", {}, "2 0.397 (the model's output)"),
        ("macs=0.1", {}, "2 0.248 (the model's output)"),
        ("params=0.9", {"round_to": 4}, "2 0.991 (the model's output)"),
    ],
)
def test_an_unreachable_target_names_the_layers_that_keep_it_from_being_met(target, options, words):
    with pytest.raises(UnreachableError) as error:
        compress(bottleneck(), target=target, example=torch.zeros(2, 10), **options)
    assert words in str(error.value)


def test_layers_that_another_kind_would_cut_stay_whole():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 50), nn.ReLU(), nn.Linear(50, 2))
    with pytest.raises(UnreachableError, match=r"the largest parts of it: 2 0\.\d+, 0 0\.\d+ \(stays whole\)$"):
        compress(model, target="params=0.01", by="neurons", example=X)


def test_a_target_that_is_met_with_much_to_spare_says_how_large_the_step_is():
    small = compress(bottleneck(), target="params=0.55", example=torch.zeros(2, 10))
    assert small.costs.parameters == 11 + 2000
    assert (
        "note: target params=0.55: 0.399 of the dense network is reached, and the next larger network has 0.599: 99% of this "
        "step is 2" in str(small)
    )
    assert "next larger" not in str(compress(bottleneck(), target="params=0.6", example=torch.zeros(2, 10)))


@pytest.mark.parametrize("how", [{"by": "weights"}, {"form": "masked"}], ids=str)
@pytest.mark.parametrize("metric", ["params", "macs"])
def test_targets_that_zeros_cannot_meet_are_refused_at_once(metric, how):
    with pytest.raises(
        ValueError, match=rf"^target '{metric}=0.5': zeros stay in place, so {metric} cannot fall[^\n]*$"
    ):
        compress(network(), target=f"{metric}=0.5", example=X, **how)


def attention() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    for p in layer.parameters():
        nn.init.normal_(p, std=0.3)  # no zeros, which would be packed
    return layer


@pytest.mark.parametrize("metric", ["params", "macs", "bytes"])
@pytest.mark.parametrize(
    "make, x", [(network, X), (attention, torch.randn(2, 5, 8))], ids=["convolutions", "attention"]
)
def test_a_target_of_1_compresses_nothing(metric, make, x):
    net = make()
    small = compress(net, target=f"{metric}=1.0", by=("filters", "rank", "weights"), example=x)
    assert small.plan.request["level"] == 0
    assert [e.word for e in small.plan.edits if e.word != "unfuse"] == []
    assert small.costs == small.dense
    with torch.no_grad():
        torch.testing.assert_close(small.model.eval()(x), net.eval()(x))


@pytest.mark.parametrize(
    "kinds", [k for n in (1, 2, 3) for k in itertools.combinations(("filters", "rank", "weights"), n)], ids="+".join
)
@pytest.mark.parametrize("allocation", ALLOCATIONS)
def test_more_compression_never_gives_a_bigger_model(kinds, allocation):
    before = None
    for ratio in (0.0, 0.1, 0.4, 0.7, 0.9, 0.97):
        small = compress(network(), allocation=allocation, example=X, **dict.fromkeys(kinds, ratio))
        found = small.costs.parameters, small.costs.macs, small.costs.bytes
        if before is not None:
            assert all(a <= b for a, b in zip(found, before, strict=True)), (ratio, found, before)
        before = found


# An accuracy to hold


def score_by_size(model: nn.Module) -> float:
    """A metric that falls as the square of what was removed: 100 for the dense model."""
    dense = sum(p.numel() for p in network().parameters())
    return 100 - 100 * (1 - sum(p.numel() for p in model.parameters()) / dense) ** 2


@pytest.mark.parametrize("drop", [2.0, 8.0, 50.0])
@pytest.mark.parametrize("calibrated", [False, True])
def test_the_most_compression_that_keeps_the_metric(drop, calibrated):
    calibration = [X] if calibrated else None
    small = compress(network(), target=f"drop={drop}", example=X, calibration=calibration, evaluate=score_by_size)
    level = small.plan.request["level"]
    assert 100 - score_by_size(small.model) <= drop
    assert 0 < level < MOST
    more = compress(network(), filters=level + MOST / 2**7, example=X)
    assert 100 - score_by_size(more.model) > drop


def test_a_metric_that_never_falls_and_one_that_falls_at_once():
    small = compress(network(), target="drop=0", example=X, evaluate=lambda model: 5)
    assert small.plan.request["level"] == MOST
    whole = sum(p.numel() for p in network().parameters())
    evaluated = []

    def brittle(model: nn.Module) -> float:
        evaluated.append(model)
        return 1.0 if sum(p.numel() for p in model.parameters()) == whole else math.nan

    small = compress(network(), target="drop=0.5", example=X, evaluate=brittle)
    assert small.plan.request["level"] < 0.03  # so little that no channel goes
    assert small.costs == small.dense
    assert all(isinstance(m, nn.Module) for m in evaluated)


def test_evaluate_may_change_the_models_that_it_is_given():
    def careless(model: nn.Module) -> float:
        for p in model.parameters():
            p.data.zero_()
        model.train()
        return 1.0

    net = network()
    small = compress(net, target="drop=0.5", example=X, evaluate=careless)
    assert any(p.abs().sum() > 0 for p in small.model.parameters())
    assert all(p.abs().sum() > 0 for p in net.parameters())
