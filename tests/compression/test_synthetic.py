"""Synthetic inputs: they give the statistics that batch norms hold, recover networks without data, and say so."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sparsefw import compress, curve
from sparsefw.compression.recovery import synthetic
from sparsefw.compression.recovery.batchnorm import recalibrate
from sparsefw.compression.recovery.synthetic import synthetic_inputs


def network() -> nn.Module:
    """A network whose statistics are those of shifted, scaled and mixed inputs."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 12, 3, bias=False), nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 12, 3, bias=False), nn.BatchNorm2d(12),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 4),
    )  # fmt: skip
    return recalibrate(net, data()).eval()


def data() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    mix = torch.tensor([[1.0, 0.9, 0.8], [0.0, 0.4, 0.1], [0.0, 0.0, 0.2]])
    return [torch.einsum("nchw,cd->ndhw", torch.randn(64, 3, 8, 8, generator=generator), mix) + 1.5 for _ in range(4)]


X = torch.zeros(2, 3, 8, 8)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(synthetic, "STEPS", 60)
    monkeypatch.setattr(synthetic, "BATCHES", 2)


def deviation(a: nn.Module, b: nn.Module) -> float:
    """Return how far statistics differ, in deviations."""
    norms = [(m, n) for m, n in zip(a.modules(), b.modules(), strict=True) if isinstance(m, nn.BatchNorm2d)]
    gaps = [(m.running_mean - n.running_mean).abs() / m.running_var.sqrt() for m, n in norms]
    return float(torch.cat(gaps).mean())


def test_synthetic_inputs_give_the_statistics_of_the_network():
    net = network()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    inputs = synthetic_inputs(net, X)
    noise = [torch.randn_like(batch) for batch in inputs]
    assert [tuple(batch.shape) for batch in inputs] == [(64, 3, 8, 8)] * 2
    assert deviation(net, recalibrate(net, inputs)) < 0.3 * deviation(net, recalibrate(net, noise))
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())
    assert not any(m._forward_pre_hooks for m in net.modules())
    again = synthetic_inputs(net, X)
    assert all(torch.equal(a, b) for a, b in zip(inputs, again, strict=True))


def test_what_they_recover_and_that_no_data_were_seen():
    net = network()
    with torch.no_grad():
        wanted = torch.cat([net(x) for x in data()])

    def error(model: nn.Module) -> float:
        with torch.no_grad():
            return float((torch.cat([model.eval()(x) for x in data()]) - wanted).square().mean())

    nothing = compress(net, filters=0.5, example=X)
    small = compress(net, filters=0.5, example=X, calibration="synthetic", refit=True)
    assert error(small.model) < 0.2 * error(nothing.model)
    notes = [note.reason for note in small.plan.untouched if note.layer == "calibration"]
    assert "synthetic inputs, made from the statistics of batch norms: no data were seen" in notes
    table = str(curve(net, "filters", [0.5], example=X, calibration="synthetic", evaluate=lambda m: -error(m)))
    assert "note: synthetic inputs" in table


def test_what_has_no_statistics_is_refused():
    plain = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    with pytest.raises(ValueError, match=r"^calibration='synthetic' makes inputs from [^\n]* this network has none"):
        compress(plain, neurons=0.5, example=torch.zeros(2, 4), calibration="synthetic")
    with pytest.raises(ValueError, match=r"^calibration='synthetic' makes inputs of one tensor of real numbers"):
        compress(network(), filters=0.5, calibration="synthetic")
