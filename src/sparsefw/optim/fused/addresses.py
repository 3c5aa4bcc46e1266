"""Tables of addresses on the device, with which one launch treats the tensors of all layers.

A kernel with one tensor as its argument would be launched once per layer, and a launch takes longer than its work. The kernels of
this package read addresses instead, and a list of the pieces of work: piece s is the `lengths[s]` entries of tensor `tensors[s]`
from entry `starts[s]` on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sparsefw.optim.fused.common import LOAD_BYTES, LOAD_NUMBERS
from sparsefw.optim.fused.elementwise import sfw_write_addresses

_AT_ONCE = 64  # addresses that one launch writes


class Addresses:
    """Addresses of tensors, in device memory.

    A kernel writes them from its arguments: that never waits for the host, and a captured graph replays it.

    fleeting   the addresses change from step to step, as those of gradients do, so that every captured graph writes its own
    """

    def __init__(self, count: int, device: torch.device, fleeting: bool = False) -> None:
        self.fleeting = fleeting
        self.table = torch.zeros(-(-count // _AT_ONCE) * _AT_ONCE, dtype=torch.int64, device=device)
        self._written: list[int] | None = None
        self._captured = False

    def update(self, addresses: list[int]) -> None:
        """Write the addresses, unless the table holds them already."""
        if self.fleeting and self.table.is_cuda and torch.cuda.is_current_stream_capturing():
            self._captured = True  # from now on the graph overwrites the table whenever it runs
        if addresses == self._written and not self._captured:
            return
        for start in range(0, len(addresses), _AT_ONCE):
            chunk = addresses[start : start + _AT_ONCE]
            chunk += chunk[-1:] * (_AT_ONCE - len(chunk))
            sfw_write_addresses[(1,)](self.table, start, tuple(chunk))
        self._written = addresses


class Pieces(NamedTuple):
    """Pieces of work, those of one tensor one after the other.

    tensors, starts, lengths   on the device, per piece: the tensor, the first entry, and the number of entries
    own_starts                 the first entry in the momentum buffer, where a row may be part of a longer one
    aligned                    how many of the first pieces start and end at multiples of 16 bytes
    first, counts              per tiling: its first piece, and the number of its pieces
    """

    tensors: Tensor
    starts: Tensor
    own_starts: Tensor
    lengths: Tensor
    aligned: int
    first: list[int]
    counts: list[int]


class Tiling(NamedTuple):
    """How one tensor is divided: the lengths of its pieces, and the distance of their starts in its momentum buffer."""

    tensor: int
    lengths: list[int]
    stride: int


def row_tiling(tensor: int, rows: int, columns: int, stride: int) -> Tiling:
    """Return one piece per row of a matrix whose rows start `stride` entries from each other in the momentum buffer."""
    return Tiling(tensor, [columns] * rows, stride)


def chunk_tiling(tensor: int, size: int, length: int) -> Tiling:
    """Return pieces of `length` entries, and one for the remainder.

    >>> chunk_tiling(0, size=10, length=4).lengths
    [4, 4, 2]
    """
    whole, remainder = divmod(size, length)
    return Tiling(tensor, [length] * whole + ([remainder] if remainder else []), length)


def pieces_of(tilings: Sequence[Tiling], device: torch.device) -> Pieces:
    """Return the pieces of all tilings, aligned ones first."""
    order = sorted(range(len(tilings)), key=lambda c: not _is_aligned(tilings[c]))
    first = [0] * len(tilings)
    rows: list[tuple[int, int, int, int]] = []
    aligned = 0
    for c in order:
        tiling = tilings[c]
        first[c] = len(rows)
        start = 0
        for position, length in enumerate(tiling.lengths):
            rows.append((tiling.tensor, start, position * tiling.stride, length))
            start += length
        if _is_aligned(tiling):
            aligned = len(rows)
    tensors, starts, own_starts, lengths = integers(rows, device).T.contiguous().unbind()
    return Pieces(tensors, starts, own_starts, lengths, aligned, first, [len(tiling.lengths) for tiling in tilings])


def _is_aligned(tiling: Tiling) -> bool:
    """Whether all pieces start at multiples of 16 bytes, if the tensor does."""
    return all(length % LOAD_NUMBERS.value == 0 for length in (tiling.stride, *tiling.lengths))


def integers(values: Iterable[int | Sequence[int]], device: torch.device) -> Tensor:
    """Return the values as int32 on the device."""
    return torch.tensor(list(values), dtype=torch.int32).to(device)


def all_aligned(addresses: Iterable[int]) -> bool:
    """Whether all addresses are multiples of 16 bytes."""
    return all(address % LOAD_BYTES.value == 0 for address in addresses)
