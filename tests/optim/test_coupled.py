"""Coupled channels: several tensors form one block, row j is everything that belongs to channel j."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from catalog import gaussian
from sparsefw import SFW, Rule, constrain
from sparsefw import geometry as geo

SHAPES = [(6, 3, 2, 2), (6,), (6, 5)]


def block(tensors):
    return torch.cat([t.detach().reshape(t.shape[0], -1) for t in tensors], dim=1)


@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels_last"])
@pytest.mark.parametrize(
    "region",
    [geo.GroupKSupportBall(2, 3.0), geo.SpectralKSupportBall(2, 3.0, geo.ExactSVD()), geo.KSupportBall(7, 3.0)],
    ids=str,
)
def test_a_coupled_block_is_the_matrix_of_its_rows(region, last):
    parts = [nn.Parameter(gaussian(shape, i) * 0.2) for i, shape in enumerate(SHAPES)]
    if last:
        parts[0].data = parts[0].data.to(memory_format=torch.channels_last)
    whole = nn.Parameter(block(parts))
    coupled = SFW([{"params": parts, "region": region, "coupled": True}], lr=0.1)
    single = SFW([{"params": [whole], "region": region}], lr=0.1)
    for step in range(10):
        for i, p in enumerate(parts):
            p.grad = gaussian(SHAPES[i], 10 * step + i)
        whole.grad = block([p.grad for p in parts])
        coupled.step()
        single.step()
        torch.testing.assert_close(block(parts), whole.detach(), rtol=1e-9, atol=1e-10)


def test_other_axes_and_labels():
    """A transposed convolution has its channels on axis 1; a labelled partition may run over several tensors."""
    by_axis = [nn.Parameter(gaussian((4, 3), 0)), nn.Parameter(gaussian((2, 4), 1))]
    labels = [torch.arange(4).repeat_interleave(3), torch.arange(4).repeat(2)]
    by_label = [nn.Parameter(p.detach().clone()) for p in by_axis]
    a = SFW([{"params": by_axis, "region": geo.GroupKSupportBall(2, 3.0), "coupled": True, "axes": [0, 1]}])
    b = SFW([{"params": by_label, "region": geo.GroupKSupportBall(2, 3.0, labels=torch.cat(labels)), "coupled": True}])
    for step in range(6):
        for params in (by_axis, by_label):
            for i, p in enumerate(params):
                p.grad = gaussian(tuple(p.shape), 10 * step + i)
        a.step()
        b.step()
        for p, q in zip(by_axis, by_label, strict=True):
            torch.testing.assert_close(p, q, rtol=1e-10, atol=1e-12)


def test_half_of_a_coupled_block_cannot_move():
    parts = [nn.Parameter(gaussian((4, 3), 0)), nn.Parameter(gaussian((4,), 1))]
    optimizer = SFW(
        [{"params": list(zip(["conv", "bn"], parts, strict=True)), "region": geo.GroupKSupportBall(2), "coupled": True}]
    )
    parts[0].grad = torch.ones(4, 3, dtype=torch.float64)
    with pytest.raises(ValueError, match="coupled block need gradients in the same step: conv has one, bn has none"):
        optimizer.step()


def test_constrain_couples_and_sizes_the_block():
    """Radius: w times the expected norm of the whole matrix, sqrt(8 / 3 + 8) for a convolution and its BN scale."""
    net = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8))
    groups = constrain(net, [Rule("*.weight", geo.GroupKSupportBall, coupled=True)], k=0.25, w=2.0, report=None)
    assert groups[0]["coupled"]
    assert groups[0]["region"] == geo.GroupKSupportBall(2, groups[0]["region"].radius)
    assert groups[0]["region"].radius == pytest.approx(2 * math.sqrt(8 / 3 + 8))
    assert "0.weight and 1 more  8x28   GroupKSupportBall (coupled)" in str(groups)
    optimizer = SFW(groups, lr=0.01)
    net(torch.randn(4, 3, 5, 5)).square().sum().backward()
    optimizer.step()
    assert optimizer.diagnostics()[0].name == "0.weight + 1.weight"


def test_readers_of_a_block_have_its_channels_as_inputs():
    """Row j of the block: row j of the first layer, and column j of the second."""
    net = nn.Sequential(nn.Linear(3, 5, bias=False), nn.ReLU(), nn.Linear(5, 2, bias=False))
    rule = Rule(("0.weight", "2.weight"), geo.GroupKSupportBall, coupled=True, readers=("2.weight",))
    groups = constrain(net, rule, k=2, w=2.0, report=None)
    assert groups[0]["axes"] == [0, 1]
    assert groups.blocks[0].shape == (5, 3 + 2)
    before = [net[0].weight.detach().clone(), net[2].weight.detach().clone()]
    optimizer = SFW(groups, lr=0.1)
    net[0].weight.grad = torch.zeros(5, 3)
    net[2].weight.grad = torch.zeros(2, 5)
    net[0].weight.grad[1] = 1.0
    net[2].weight.grad[:, 3] = 1.0  # channels 1 and 3 are chosen, by one side each
    optimizer.step()
    decay = 1 - optimizer.diagnostics()[0].step_size
    torch.testing.assert_close(net[0].weight.detach()[[0, 2, 3, 4]], decay * before[0][[0, 2, 3, 4]])
    torch.testing.assert_close(net[2].weight.detach()[:, [0, 1, 2, 4]], decay * before[1][:, [0, 1, 2, 4]])
    assert bool((net[0].weight.detach()[1] < decay * before[0][1]).all())
    assert bool((net[2].weight.detach()[:, 3] < decay * before[1][:, 3]).all())
    with pytest.raises(ValueError, match="readers are parts of a coupled block"):
        Rule("*", "neurons", readers=("2.weight",))


def test_state_of_a_coupled_block_continues():
    parts = [nn.Parameter(gaussian(shape, i)) for i, shape in enumerate(SHAPES)]
    optimizer = SFW([{"params": parts, "region": geo.GroupKSupportBall(2, 3.0), "coupled": True}])
    twins = None
    for step in range(8):
        if step == 4:
            twins = [nn.Parameter(p.detach().clone()) for p in parts]
            resumed = SFW([{"params": twins, "region": geo.GroupKSupportBall(1, 9.0), "coupled": True}])
            resumed.load_state_dict(optimizer.state_dict())
        for params, o in ((parts, optimizer), (twins, resumed if twins else None)):
            if params:
                for i, p in enumerate(params):
                    p.grad = gaussian(SHAPES[i], 10 * step + i)
                o.step()
    assert all(torch.equal(p, q) for p, q in zip(parts, twins, strict=True))
