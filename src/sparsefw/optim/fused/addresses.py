"""Where the tensors of a network lie, as tables on the device: so one launch treats all layers at once.

A kernel that was given one tensor would be launched once per layer and wait for its launch longer than it works. The kernels of
this package are given addresses instead, and a list of the pieces of work: piece s is `lengths[s]` entries of tensor
`tensors[s]` from entry `starts[s]` on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sparsefw.optim.fused.elementwise import sfw_write_addresses

_AT_ONCE = 64


class Addresses:
    """Addresses of tensors, in device memory.

    A kernel writes them, to which they are arguments: that never waits for the host, and a captured graph keeps them. `fleeting`
    ones, such as those of gradients, change from step to step, so every captured graph writes its own.
    """

    def __init__(self, count: int, device: torch.device, fleeting: bool = False) -> None:
        self.fleeting = fleeting
        self.table = torch.zeros(-(-count // _AT_ONCE) * _AT_ONCE, dtype=torch.int64, device=device)
        self._written: list[int] | None = None
        self._captured = False

    def update(self, addresses: list[int]) -> None:
        if self.fleeting and self.table.is_cuda and torch.cuda.is_current_stream_capturing():
            self._captured = True  # from now on the graph writes its own here whenever it runs
        if addresses == self._written and not self._captured:
            return
        for start in range(0, len(addresses), _AT_ONCE):
            some = addresses[start : start + _AT_ONCE]
            some += some[-1:] * (_AT_ONCE - len(some))
            sfw_write_addresses[(1,)](self.table, start, tuple(some))
        self._written = addresses


class Pieces(NamedTuple):
    """Pieces of work, those of one tensor one after the other. The first `aligned` start and end at multiples of 16 bytes."""

    tensors: Tensor
    starts: Tensor
    own_starts: Tensor  # in the momentum buffer, where a row may be part of a longer one
    lengths: Tensor
    aligned: int
    first: list[int]  # per cut: its first piece
    counts: list[int]  # per cut: how many it has


class Cut(NamedTuple):
    """How one tensor is cut: the lengths of its pieces, and how far apart they start in its momentum buffer."""

    tensor: int
    lengths: list[int]
    apart: int


def row_cut(tensor: int, rows: int, columns: int, apart: int) -> Cut:
    """A piece per row of a matrix whose rows start `apart` entries from each other in the momentum buffer."""
    return Cut(tensor, [columns] * rows, apart)


def chunk_cut(tensor: int, size: int, length: int) -> Cut:
    """Pieces of `length` entries, and a rest."""
    return Cut(tensor, [length] * (size // length) + [size % length] * (size % length > 0), length)


def pieces_of(cuts: Sequence[Cut], device: torch.device) -> Pieces:
    order = sorted(range(len(cuts)), key=lambda c: not _is_aligned(cuts[c]))  # a stable sort: aligned ones first
    first, count = [0] * len(cuts), [len(cut.lengths) for cut in cuts]
    rows: list[tuple[int, int, int, int]] = []
    aligned = 0
    for c in order:
        cut, first[c], start = cuts[c], len(rows), 0
        for position, length in enumerate(cut.lengths):
            rows.append((cut.tensor, start, position * cut.apart, length))
            start += length
        aligned = len(rows) if _is_aligned(cut) else aligned
    tensors, starts, own_starts, flat = integers(rows, device).T.contiguous().unbind()
    return Pieces(tensors, starts, own_starts, flat, aligned, first, count)


def _is_aligned(cut: Cut) -> bool:
    return cut.apart % 4 == 0 and all(length % 4 == 0 for length in cut.lengths)


def integers(values: Iterable[int | Sequence[int]], device: torch.device) -> Tensor:
    return torch.tensor(list(values), dtype=torch.int32).to(device)


def all_aligned(addresses: Iterable[int]) -> bool:
    return all(address % 16 == 0 for address in addresses)
