"""Latency as a target: layers are measured once, cached on disk, and measured again if the cache is damaged."""

from __future__ import annotations

import json
import re

import pytest
import torch
from torch import Tensor, nn

from compression.networks import unnormed as network
from sparsefw.compression import compress, latency
from sparsefw.compression.latency import Latency, LatencyTable, estimate, measure
from sparsefw.compression.target import MOST, UnreachableError

STEP = MOST / 2**14  # how finely the level is searched for
METRICS = {"params": "parameters", "macs": "macs", "bytes": "bytes"}
X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def share_of_latency(small: nn.Module, dense: nn.Module, example: Tensor) -> float:
    table = LatencyTable(example.device)
    return estimate(small, example, table) / estimate(dense, example, table)


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
    estimate(network(), X.repeat(2, 1, 1, 1), LatencyTable(X.device))  # other shapes are other measurements
    assert len(clock) == 8


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1, 2]", b"3", b"\xff\xfe", b'{"x": "fast"}', b'{"x": null}', b"null"]
)
def test_a_damaged_table_is_measured_again(clock, tmp_path, content):
    share_of_latency(network(), network(), X)
    (path,) = (tmp_path / "cache").iterdir()
    path.write_bytes(content)
    assert share_of_latency(network(), network(), X) == 1.0
    assert len(clock) == 8
    assert len(json.loads(path.read_text())) == 4


@pytest.mark.parametrize("time", ["-1.0", "0", "NaN", "Infinity"])
def test_impossible_times_are_measured_again(clock, tmp_path, time):
    share_of_latency(network(), network(), X)
    (path,) = (tmp_path / "cache").iterdir()
    table = json.loads(path.read_text())
    path.write_text(re.sub(r": [\d.]+\}", f": {time}}}", json.dumps(table)))
    share_of_latency(network(), network(), X)
    assert len(clock) == 5
    assert json.loads(path.read_text()) == table


def test_without_a_writable_folder_layers_are_measured_every_time(clock, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPARSEFW_CACHE", str(tmp_path / "file" / "below"))
    assert share_of_latency(network(), network(), X) == 1.0
    assert len(clock) == 4


def test_the_path_of_the_table(monkeypatch, tmp_path):
    monkeypatch.setenv("SPARSEFW_CACHE", str(tmp_path / "own"))
    assert LatencyTable(X.device).path.parent == tmp_path / "own"
    monkeypatch.delenv("SPARSEFW_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert LatencyTable(X.device).path.parent == tmp_path / "xdg" / "sparsefw"


def test_layers_that_differ_in_any_way_are_distinguished(clock):
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
    table = LatencyTable(x.device)
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
    assert estimate(net, torch.randn(2, 4), LatencyTable(X.device)) == 32.0
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
