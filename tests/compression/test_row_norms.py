"""The norms of all rows in one launch are those of each weight: on a GPU where there is one, else by Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("triton")

from sparsefw.compression.fused.row_norms import SPAN, RowNorms

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def weights() -> list[Tensor]:
    torch.manual_seed(0)
    shapes = [(5, 3, 3, 3), (7, 2 * SPAN + 1), (1, 1), (4, 16, 3, 3), (3, SPAN)]
    made = [nn.Parameter(torch.randn(shape, device=DEVICE)) for shape in shapes]
    made[3].data = made[3].data.to(memory_format=torch.channels_last)
    with torch.no_grad():
        made[0][2] = 0
        made[1][3, 5] = 1e30  # whose square float32 does not hold
    return made


def expected(tensors: list[Tensor], order: int) -> Tensor:
    rows = [torch.linalg.vector_norm(w.detach().double().flatten(1), order, dim=1) for w in tensors]
    return torch.cat(rows)


@pytest.mark.parametrize("order", [1, 2])
def test_they_are_those_of_each_weight(order):
    tensors = weights()
    norms = RowNorms(tensors, order)
    assert norms.fits()
    torch.testing.assert_close(norms(), expected(tensors, order), rtol=1e-14, atol=0)


def test_weights_that_moved_are_read_where_they_are_now():
    tensors = weights()
    norms = RowNorms(tensors, 1)
    norms()
    for tensor in tensors:
        tensor.data = 2 * tensor.data
    torch.testing.assert_close(norms(), expected(tensors, 1), rtol=1e-14, atol=0)


def test_other_types_and_layouts_are_left_to_others():
    assert not RowNorms([*weights(), torch.zeros(2, 2, dtype=torch.float64, device=DEVICE)], 1).fits()
    assert not RowNorms([torch.zeros(4, 6, device=DEVICE).T], 1).fits()
