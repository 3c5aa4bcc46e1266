"""WideResNets: their size by the paper's rule, and what makes a block pre-activated."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sparsefw.models import WideResNet, build
from sparsefw.models.wide_resnet import PreActivationBlock


@pytest.mark.parametrize(("depth", "widen", "millions"), [(40, 1, 0.6), (40, 2, 2.2), (16, 8, 11.0), (28, 10, 36.5)])
def test_sizes_in_the_paper(depth, widen, millions):
    with torch.device("meta"):
        net = WideResNet(depth=depth, widen=widen, classes=10)
    assert round(sum(p.numel() for p in net.parameters()) / 1e6, 1) == millions
    # The depth counts every convolution, those on the shortcuts too; at width 16 the first stage needs none.
    assert sum(isinstance(m, nn.Conv2d) for m in net.modules()) == depth - (widen == 1)


@pytest.mark.parametrize("depth", [27, 4, 9, 0])
def test_depths_that_do_not_exist(depth):
    with pytest.raises(ValueError, match="depth must be"):
        build("wide_resnet", depth=depth)


def test_the_sum_passes_a_block_unchanged():
    """With its last convolution at 0, a block of equal shapes is the identity, also where the input is negative."""
    block = PreActivationBlock(4, 4, 1)
    nn.init.zeros_(block.conv2.weight)
    x = torch.randn(2, 4, 8, 8)
    assert torch.equal(block(x), x)


def test_the_shortcut_of_a_changing_shape_reads_the_activated_input():
    block = PreActivationBlock(4, 6, 2).eval()
    nn.init.zeros_(block.conv2.weight)
    x = torch.randn(2, 4, 8, 8)
    with torch.no_grad():
        assert torch.equal(block(x), block.shortcut(torch.relu(block.bn1(x))))


def test_resolutions():
    net = WideResNet(depth=10, widen=1)
    x = net.layer2(net.layer1(net.conv1(torch.randn(2, 3, 32, 32))))
    assert x.shape == (2, 32, 16, 16)
    assert net.layer3(x).shape == (2, 64, 8, 8)
