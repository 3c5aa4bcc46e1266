"""Norms of the rows of many weights in one launch: a launch for each layer would take longer than its work.

norms_j = ||W_j||_1  or  ||W_j||_2,   in float64, for the rows W_j of all weights, one weight after the other
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

SPAN = 512  # entries of a row that a program holds at once


@triton.jit
def sfw_row_norms(table, tensors, first_rows, lengths, norms, ORDER: tl.constexpr, SPAN: tl.constexpr):  # fmt: skip
    """Compute the norm of one row, one program per row.

    table        the addresses of the weights
    tensors      per row: the number of its weight
    first_rows   per weight: the number of its first row
    lengths      per weight: the entries of a row
    """
    row = tl.program_id(0)
    tensor = tl.load(tensors + row)
    length = tl.load(lengths + tensor)
    start = (row - tl.load(first_rows + tensor)).to(tl.int64) * length
    weight = tl.load(table + tensor).to(tl.pointer_type(tl.float32)) + start
    i = tl.arange(0, SPAN)
    total = tl.zeros((SPAN,), tl.float64)
    for offset in range(0, length, SPAN):
        x = tl.load(weight + offset + i, mask=offset + i < length, other=0.0).to(tl.float64)
        total += tl.abs(x) if ORDER == 1 else x * x
    norm = tl.sum(total)
    tl.store(norms + row, norm if ORDER == 1 else tl.sqrt(norm))


class RowNorms:
    """The norms of the rows of these weights, whose first axis counts rows.

    Args:
        weights: The parameters.
        order: 1 or 2.
    """

    def __init__(self, weights: Sequence[Tensor], order: int) -> None:
        self._weights = weights
        self._order = order
        device = weights[0].device
        rows = torch.tensor([len(weight) for weight in weights])
        self._tensors = torch.arange(len(weights)).repeat_interleave(rows).to(torch.int32).to(device)
        self._first_rows = (rows.cumsum(0) - rows).to(torch.int32).to(device)
        lengths = [weight[0].numel() for weight in weights]
        self._lengths = torch.tensor(lengths, dtype=torch.int32, device=device)
        self._norms = torch.zeros(int(rows.sum()), dtype=torch.float64, device=device)
        self._table = torch.zeros(len(weights), dtype=torch.int64, device=device)
        self._addresses: list[int] = []

    def fits(self) -> bool:
        """Return whether the kernel can read the weights as they are: float32, the entries of a row one behind the other."""
        return all(
            weight.dtype == torch.float32
            and (
                weight.is_contiguous() or (weight.ndim == 4 and weight.is_contiguous(memory_format=torch.channels_last))
            )
            for weight in self._weights
        )

    def __call__(self) -> Tensor:
        """Return the norms of the weights as they are at the moment, in memory that the next call writes to."""
        addresses = [weight.data_ptr() for weight in self._weights]
        if addresses != self._addresses:  # the first call, or weights that were moved; never in a captured step
            self._table.copy_(torch.tensor(addresses))
            self._addresses = addresses
        sfw_row_norms[(len(self._tensors),)](
            self._table, self._tensors, self._first_rows, self._lengths, self._norms, ORDER=self._order, SPAN=SPAN
        )
        return self._norms
