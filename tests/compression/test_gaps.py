"""The gap between two outputs, which decides whether a removal is harmless."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from sparsefw import compress
from sparsefw.compression.structure.gaps import relative_gap


def test_an_offset_of_all_outputs_hides_no_difference():
    class Offset(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.o = nn.Linear(8, 16), nn.Linear(16, 4)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.relu(self.a(x))
            return self.o(h / h.shape[1]) + 1e6

    with pytest.raises(ValueError, match="nothing to compress by filters: a: removing them is not the same"):
        compress(Offset().double(), filters=0.5, example=torch.randn(4, 8).double())


def test_gaps_by_hand():
    a = torch.tensor([1.0, 3.0, -math.inf])
    assert relative_gap(a, torch.tensor([1.0, 2.5, -math.inf])) == 0.25
    assert relative_gap(a, torch.tensor([1.0, 3.0, 0.0])) == math.inf
    assert relative_gap(torch.tensor([2.0]), torch.tensor([1.0])) == 0.5
    assert relative_gap(torch.tensor([1, 2, 3, 4]), torch.tensor([1, 2, 3, 5]), whole_numbers=True) == 0.25
    assert relative_gap(torch.tensor([1, 2]), torch.tensor([1, 2])) == math.inf
    assert relative_gap(torch.zeros(2), torch.zeros(3)) == math.inf
    assert relative_gap(torch.full((2,), math.nan), torch.full((2,), math.nan)) == math.inf
    big = torch.tensor([6e4, -6e4], dtype=torch.float16)
    assert relative_gap(big, -big) == 1.0
    ones = torch.ones(5) + torch.tensor([0, 1, 0, -1, 0]) * 6e-8  # a norm, say: alike but for rounding
    assert relative_gap(ones, torch.ones(5)) < 1e-6
