"""Targets: the least compression that meets them, and one line where none does."""

from __future__ import annotations

import itertools
import json
import math
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from sparsefw.compress import compress, latency
from sparsefw.compress.allocate import ALLOCATIONS
from sparsefw.compress.latency import Latency, Table, estimate, measure, share_of_latency
from sparsefw.compress.plan import Keep, Split
from sparsefw.compress.target import MOST, Target, UnreachableError, least_compression, most_compression

STEP = MOST / 2**14  # how finely the level is searched for
METRICS = {"params": "parameters", "macs": "macs", "bytes": "bytes"}
X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 24, 3), nn.ReLU(), nn.Conv2d(24, 24, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 4),
    )  # fmt: skip


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
def test_words_are_read(text, metric, value):
    assert Target.parse(text) == Target(metric, value)


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
def test_words_that_cannot_be_read(text, says):
    with pytest.raises(ValueError, match=rf"^target {re.escape(repr(text))}: [^\n]*{re.escape(says)}[^\n]*$"):
        compress(network(), target=text, example=X)


def test_what_a_target_needs():
    with pytest.raises(ValueError, match=r"^target drop= needs evaluate="):
        compress(network(), target="drop=0.1", example=X)
    with pytest.raises(ValueError, match=r"^by='layers': there are filters, rank, weights$"):
        compress(network(), target="params=0.5", by="layers", example=X)
    with pytest.raises(ValueError, match=r"^rank= and by='rank' both say how much; give one$"):
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
        with pytest.raises(UnreachableError, match=r"params=.* cannot be reached: .* is 0\.1 of dense$"):
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
    less = compress(
        network(), example=X, **dict.fromkeys((by,) if isinstance(by, str) else by, max(0.0, level - 2 * STEP))
    )
    assert share(less, metric) > value
    assert small.plan.request["target"] == f"{metric}={value}"


@pytest.mark.parametrize("value", [0.9, 0.3, 0.1])
def test_bytes_by_weights_to_within_a_few(value):
    small = compress(network(), target=f"bytes={value}", by="weights", example=X)
    total = small.dense.parameters
    assert value - 4 * 4 * STEP * total / small.dense.bytes - 1e-3 <= share(small, "bytes") <= value


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
def test_out_of_reach_is_said_with_what_is_in_reach(metric, by):
    with pytest.raises(UnreachableError, match=rf"^target {metric}=0.001 cannot be reached: [^\n]*$") as error:
        compress(network(), target=f"{metric}=0.001", by=by, example=X)
    named = float(re.search(r"is ([\d.e-]+) of dense", str(error.value))[1])
    assert named == pytest.approx(share(compress(network(), **{by: MOST}, example=X), metric), rel=1e-3)
    assert isinstance(error.value, ValueError)


@pytest.mark.parametrize("how", [{"by": "weights"}, {"form": "masked"}], ids=str)
@pytest.mark.parametrize("metric", ["params", "macs"])
def test_what_zeros_cannot_change_is_said_at_once(metric, how):
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
def test_all_of_it_is_no_compression(metric, make, x):
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
@pytest.mark.parametrize("allocation", [*ALLOCATIONS, "sensitivity"])
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


def test_what_evaluate_does_to_a_model_is_its_own_business():
    def careless(model: nn.Module) -> float:
        for p in model.parameters():
            p.data.zero_()
        model.train()
        return 1.0

    net = network()
    small = compress(net, target="drop=0.5", example=X, evaluate=careless)
    assert any(p.abs().sum() > 0 for p in small.model.parameters())
    assert all(p.abs().sum() > 0 for p in net.parameters())


# Latency


@pytest.fixture
def clock(tmp_path, monkeypatch):
    """Time stands still: a layer takes as many milliseconds as it has weights. Yields what was measured."""
    monkeypatch.setenv("SPARSEFW_CACHE", str(tmp_path / "cache"))
    measured: list[nn.Module] = []

    def repeat(once, seconds, device, least=10, most=2000):
        (layer,) = [c.cell_contents for c in once.__closure__ if isinstance(c.cell_contents, nn.Module)]
        once()
        measured.append(layer)
        return [float(layer.weight.numel())] * 3

    monkeypatch.setattr(latency, "repeat", repeat)
    return measured


def weights(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters() if p.ndim > 1)


@pytest.mark.parametrize("by", ["filters", "rank"])
def test_a_fraction_of_the_latency(clock, by):
    net = network()
    small = compress(net, target="latency=0.5", by=by, example=X)
    assert weights(small.model) <= 0.5 * weights(net)
    less = compress(net, example=X, **{by: small.plan.request["level"] - 2 * STEP})
    assert weights(less.model) > 0.5 * weights(net)


def test_latency_out_of_reach(clock):
    with pytest.raises(UnreachableError, match=r"latency=0.001 cannot be reached"):
        compress(network(), target="latency=0.001", example=X)


def test_layers_are_measured_once_and_kept_on_disk(clock, tmp_path):
    assert share_of_latency(network(), network(), X) == 1.0
    assert len(clock) == 4
    (path,) = (tmp_path / "cache").iterdir()
    assert sorted(json.loads(path.read_text()).values()) == sorted(
        float(p.numel()) for p in network().parameters() if p.ndim > 1
    )
    assert share_of_latency(network(), network(), X) == 1.0
    assert len(clock) == 4
    estimate(network(), X.repeat(2, 1, 1, 1), Table(X.device))  # other shapes are other measurements
    assert len(clock) == 8


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1, 2]", b"3", b"\xff\xfe", b'{"x": "fast"}', b'{"x": null}', b"null"]
)
def test_a_damaged_table_is_measured_anew(clock, tmp_path, content):
    share_of_latency(network(), network(), X)
    (path,) = (tmp_path / "cache").iterdir()
    path.write_bytes(content)
    assert share_of_latency(network(), network(), X) == 1.0
    assert len(clock) == 8
    assert len(json.loads(path.read_text())) == 4


@pytest.mark.parametrize("time", ["-1.0", "0", "NaN", "Infinity"])
def test_times_that_cannot_be_are_measured_anew(clock, tmp_path, time):
    share_of_latency(network(), network(), X)
    (path,) = (tmp_path / "cache").iterdir()
    table = json.loads(path.read_text())
    path.write_text(re.sub(r": [\d.]+\}", f": {time}}}", json.dumps(table)))
    share_of_latency(network(), network(), X)
    assert len(clock) == 5
    assert json.loads(path.read_text()) == table


def test_where_nothing_can_be_written_it_is_measured_every_time(clock, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPARSEFW_CACHE", str(tmp_path / "file" / "below"))
    assert share_of_latency(network(), network(), X) == 1.0
    assert len(clock) == 4


def test_where_the_table_is(monkeypatch, tmp_path):
    monkeypatch.setenv("SPARSEFW_CACHE", str(tmp_path / "own"))
    assert Table(X.device).path.parent == tmp_path / "own"
    monkeypatch.delenv("SPARSEFW_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert Table(X.device).path.parent == tmp_path / "xdg" / "sparsefw"


def test_layers_that_differ_in_any_way_are_told_apart(clock):
    x = torch.randn(1, 4, 8, 8)
    layers = [
        nn.Conv2d(4, 4, 3),
        nn.Conv2d(4, 4, 3, stride=2),
        nn.Conv2d(4, 4, 3, padding=1),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
        nn.Conv2d(4, 4, 3, dilation=2),
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Conv2d(4, 4, 3, bias=False),
        nn.ConvTranspose2d(4, 4, 3),
        nn.ConvTranspose2d(4, 4, 3, stride=2),
        nn.ConvTranspose2d(4, 4, 3, stride=2, output_padding=1),
    ]
    table = Table(x.device)
    for _ in range(2):
        for layer in layers:
            table.of(layer, x)
    assert len(clock) == len(layers)
    for other in (x.to(memory_format=torch.channels_last), torch.cat([x, x])):
        table.of(layers[0], other)
    table.of(layers[0].double(), x.double())
    for linear in (nn.Linear(8, 4), nn.Linear(8, 4, bias=False)):
        table.of(linear, x)
    assert len(clock) == len(layers) + 5


def test_a_layer_that_is_called_twice_takes_twice_as_long(clock):
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(self.layer(x))

    net = Twice().train()
    assert estimate(net, torch.randn(2, 4), Table(X.device)) == 32.0
    assert net.layer.training
    assert not net.layer._forward_pre_hooks


def test_real_measurements(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSEFW_CACHE", str(tmp_path))
    net = network().train()
    found = measure(net, X, seconds=0.02)
    assert isinstance(found, Latency)
    assert found.median > 0
    assert found.runs >= 10
    assert (found.batch, found.backend, found.device) == (2, "eager", "cpu")
    assert measure(net, X, batch=5, seconds=0.02).batch == 5
    assert measure(net, {"input": X}, seconds=0.02).batch == 2
    assert "ms" in str(found)
    assert "batch 2" in str(found)
    assert net.training
    assert 0 < share_of_latency(net, net, X) <= 1
