"""Convolutions padded as TensorFlow's SAME: sizes by the formula, values by padding by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from sparsefw.compression.recovery.patches import patches
from sparsefw.compression.structure.factorisation import is_standard, split
from sparsefw.compression.structure.same_padding import SamePaddedConv2d


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("kernel, dilation", [(1, 1), (2, 1), (3, 1), (3, 2), (4, 3)])
def test_there_is_an_output_for_every_stride(kernel, dilation, stride):
    layer = SamePaddedConv2d(2, 3, kernel, stride=stride, dilation=dilation)
    for height, width in [(7, 8), (12, 9), (1, 5)]:
        expected = (1, 3, math.ceil(height / stride), math.ceil(width / stride))
        assert layer(torch.randn(1, 2, height, width)).shape == expected


def test_an_odd_zero_lies_behind():
    layer = SamePaddedConv2d(1, 1, 3, stride=2, bias=False)
    x = torch.arange(16.0).view(1, 1, 4, 4)
    assert torch.equal(layer.padded(x), functional.pad(x, (0, 1, 0, 1)))
    assert torch.equal(layer.padded(x[..., :3, :]), functional.pad(x[..., :3, :], (0, 1, 1, 1)))


def test_it_can_be_split_and_fitted_like_any_layer():
    layer = SamePaddedConv2d(4, 6, 3, stride=2).double()
    x = torch.randn(2, 4, 7, 8).double()
    assert is_standard(layer)
    assert torch.allclose(split(layer, 6)(x), layer(x))
    columns = patches(layer, x, torch.arange(16), (4, 4))
    outputs = layer.weight.flatten(1) @ columns.flatten(1, 2) + layer.bias[:, None]
    assert torch.allclose(outputs.view(2, 6, 4, 4), layer(x))


def test_subclasses_of_it_are_not_standard():
    class Own(SamePaddedConv2d):
        def forward(self, x):
            return nn.functional.relu(super().forward(x))

    assert not is_standard(Own(1, 1, 1))
