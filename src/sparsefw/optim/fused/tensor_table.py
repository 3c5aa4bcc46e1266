"""The table of a step's tensors: their addresses on the device, and the check of their gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsefw.optim.fused import elementwise
from sparsefw.optim.fused.addresses import Addresses, Pieces, all_aligned, chunk_tiling, integers, pieces_of
from sparsefw.optim.nonfinite import largest_norm

CHUNK = 8192
_MOST_RATES = 64


class TensorTable:
    """The tensors of a step, by number.

    params                        the parameters
    number                        parameter -> its number
    gradients, momenta, weights   the addresses of each tensor's gradient, momentum buffer and weight
    buffers                       the momentum buffers; None for a parameter without one
    norms                         the norms of the gradients, on the device
    bad                           how many gradients are not finite, on the device
    """

    def __init__(self, params: list[Tensor], tally: Tensor) -> None:
        count = len(params)
        device = params[0].device
        self.device = device
        self.params = params
        self.number = {p: t for t, p in enumerate(params)}
        self.gradients = Addresses(count, device, fleeting=True)
        self.momenta = Addresses(count, device)
        self.weights = Addresses(count, device)
        self.buffers: list[Tensor | None] = [None] * count
        self.norms = torch.zeros(count, device=device)
        self.bad = torch.zeros((), dtype=torch.int32, device=device)
        self._is_aligned = False
        self._tally = tally
        self._rates: dict[float, Tensor] = {}
        self._pieces = pieces_of([chunk_tiling(t, p.numel(), CHUNK) for t, p in enumerate(params)], device)
        self._first = integers(self._pieces.first, device)
        self._count = integers(self._pieces.counts, device)
        self._partial = torch.zeros(len(self._pieces.tensors), device=device)

    def check_gradients(self) -> None:
        """Write the addresses of all tensors, compute the norms of the gradients, and count those that are not finite."""
        if len(self._rates) > _MOST_RATES:  # a schedule adds a rate in every step
            self._rates.clear()
        addresses = [
            [p.grad.data_ptr() for p in self.params],  # type: ignore[union-attr]
            [0 if buffer is None else buffer.data_ptr() for buffer in self.buffers],
            [p.data_ptr() for p in self.params],
        ]
        for table, numbers in zip((self.gradients, self.momenta, self.weights), addresses, strict=True):
            table.update(numbers)
        self._is_aligned = all(map(all_aligned, addresses))
        pieces = self._pieces
        elementwise.sfw_squares[(len(pieces.tensors),)](
            self.gradients.table,
            pieces.tensors,
            pieces.starts,
            pieces.lengths,
            self.aligned_pieces(pieces),
            self.bad,
            self._partial,
            SPAN=elementwise.SPAN,
        )
        elementwise.sfw_verdict[(len(self.params),)](
            self._partial,
            self._first,
            self._count,
            largest_norm(torch.float32),
            self.bad,
            self._tally,
            self.norms,
            SPAN=256,
        )

    def rate(self, value: float | Tensor) -> Tensor:
        """Return a learning rate on the device. A tensor there is used itself, so that a captured graph sees later changes."""
        if isinstance(value, Tensor):
            return value.to(self.device, torch.float32)
        if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            # Not cached: it is filled only when the graph runs.
            return torch.full((), value, device=self.device)
        if value not in self._rates:
            self._rates[value] = torch.full((), value, device=self.device)
        return self._rates[value]

    @property
    def is_aligned(self) -> bool:
        """Whether all tensors start at multiples of 16 bytes."""
        return self._is_aligned

    def aligned_pieces(self, pieces: Pieces) -> int:
        """Return how many of the pieces may be loaded 16 bytes at a time: the first ones, or none."""
        return pieces.aligned if self._is_aligned else 0
