"""Weights as matrices, and back."""

from __future__ import annotations

import pytest
import torch

from catalog import gaussian
from sparsefw.geometry.matrices import as_matrices, from_matrices, wide_matrices


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_row_is_all_that_computes_an_output(axis, groups):
    weight = gaussian((4, 6, 3, 2), 0)
    matrices = as_matrices(weight, axis, groups)
    rows = (4 // groups, 6)[axis]
    assert tuple(matrices.shape) == (groups, rows, weight.numel() // groups // rows)
    for group, part in enumerate(weight.chunk(groups)):
        for row in range(rows):
            assert torch.equal(matrices[group, row], part.select(axis, row).flatten())
    assert torch.equal(from_matrices(matrices, weight.shape, axis, groups), weight)


@pytest.mark.parametrize("shape", [(2, 7), (2, 3, 2, 2), (2, 9, 2, 2)])
def test_wide_matrices_and_back(shape):
    stack = gaussian(shape, 0)
    matrices, back = wide_matrices(stack)
    assert matrices.shape[1] <= matrices.shape[2]
    assert torch.equal(back(matrices), stack)
