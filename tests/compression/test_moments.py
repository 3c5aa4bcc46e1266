"""Networks without BatchNorm: after plain compression every layer has the dense network's means and deviations again."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from sparsefw.compression import compress
from sparsefw.compression.artifact.plan import Keep
from sparsefw.compression.recovery.calibration import Calibration
from sparsefw.compression.recovery.cut_network import CutNetwork
from sparsefw.compression.recovery.moments import match_moments

KINDS = {"filters": 0.4, "masked": 0.4, "rank": 0.7, "weights": 0.7}


def network(bias: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 12, 3, bias=bias), nn.ReLU(), nn.Conv2d(12, 12, 3, bias=bias), nn.ReLU(),
        nn.Conv2d(12, 12, 3, bias=bias), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 3, bias=bias),
    ).double()  # fmt: skip


def batches() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(4 + i, 2, 10, 10, generator=generator, dtype=torch.float64) + 0.3 for i in range(3)]


def compressed(net: nn.Module, kind: str, calibration: list[Tensor] | None):
    how = {"filters": KINDS[kind], "form": "masked"} if kind == "masked" else {kind: KINDS[kind]}
    return compress(net, example=batches()[0], calibration=calibration, refit=False, **how)


def outputs(net: nn.Sequential, layer: int) -> Tensor:
    """(channels, everything that was seen of them)"""
    with torch.no_grad():
        seen = [net[: layer + 1](x) for x in batches()]
    return torch.cat([y.transpose(0, 1).flatten(1) for y in seen], dim=1)


def last_weight(layer: nn.Module) -> Tensor:
    return (layer[-1] if isinstance(layer, nn.Sequential) else layer).weight.detach().flatten(1)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_means_and_deviations_are_the_dense_ones(kind, bias):
    net = network(bias)
    plain, matched = (compressed(net, kind, c) for c in (None, batches()))
    assert plain.plan.edits == matched.plan.edits
    rows = {e.layer: list(e.kept) for e in matched.plan.edits if isinstance(e, Keep) and e.side == "out"}
    within = 0
    for i in (0, 2, 4, 8):
        wanted, got = outputs(net, i), outputs(matched.model, i)
        wanted = wanted[rows.get(str(i), range(len(wanted)))]
        before, after = last_weight(plain.model[i]), last_weight(matched.model[i])
        silent = before.norm(dim=1) == 0
        scale = after.norm(dim=1) / before.norm(dim=1)
        torch.testing.assert_close(after[~silent], (before * scale.unsqueeze(1))[~silent])  # only the scale changed
        assert not after[silent].any()
        assert ((scale > 0.5 - 1e-9) & (scale < 2 + 1e-9))[~silent].all()
        inside = (scale > 0.5 + 1e-9) & (scale < 2 - 1e-9) & ~silent
        within += int(inside.sum())
        torch.testing.assert_close(got.std(1)[inside], wanted.std(1)[inside], rtol=1e-8, atol=1e-10)
        assert (got.std(1) <= wanted.std(1) * (1 + 1e-9))[scale > 2 - 1e-9].all()
        if bias:
            torch.testing.assert_close(got.mean(1), wanted.mean(1), rtol=1e-8, atol=1e-9)
    assert within >= 20


def test_the_scale_stays_between_one_half_and_two():
    """A channel whose deviation fell to a tenth is doubled, one that grew tenfold halved; silent ones are left alone."""
    dense = nn.Linear(3, 5).double()
    small = copy.deepcopy(dense)
    with torch.no_grad():
        small.weight *= torch.tensor([0.1, 10.0, 0.0, 0.8, 1.0]).unsqueeze(1)
        small.weight[4] = torch.tensor([0.0, 0.0, 1.0])  # reads what is constant
    before = small.weight.detach().clone()
    x = torch.randn(50, 3, dtype=torch.float64)
    x[:, 2] = 1.0
    wrapped, compact = nn.Sequential(dense), nn.Sequential(small)
    match_moments(wrapped, CutNetwork(compact, (), (), {}, lambda *_: before), ["0"], Calibration([x], x.device))
    torch.testing.assert_close(small.weight, before * torch.tensor([[2.0], [0.5], [1.0], [1.25], [1.0]]))
    with torch.no_grad():
        torch.testing.assert_close(compact(x).mean(0), wrapped(x).mean(0))


def test_progress_ends():
    calls: list[tuple[int, int, str]] = []
    compress(network(), filters=0.5, calibration=batches(), refit=False, progress=lambda *call: calls.append(call))
    assert calls == [(0, 4, "0"), (1, 4, "2"), (2, 4, "4"), (3, 4, "8"), (4, 4, "")]


def test_networks_with_batch_norm_do_not_need_it():
    net = nn.Sequential(nn.Conv2d(2, 12, 3), nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 4, 3)).double()
    small = compress(net, weights=0.5, calibration=batches(), refit=False).model
    kept = small[3].weight != 0
    assert torch.equal(small[3].weight[kept], net[3].weight[kept])
