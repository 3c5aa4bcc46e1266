"""All tensors of a step, and what needs no region: the check of the gradients, and SGD."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from sparsefw.optim.fused import elementwise
from sparsefw.optim.fused.addresses import Addresses, Pieces, all_aligned, chunk_cut, integers, pieces_of
from sparsefw.optim.master_weights import State, state_buffer
from sparsefw.optim.nonfinite import largest_norm

CHUNK = 8192
_MOST_RATES = 64
Group = dict[str, Any]


class Network:
    """All tensors of a step, by number: where their gradients, momenta and weights lie, and whether the gradients are finite."""

    def __init__(self, params: list[Tensor], tally: Tensor) -> None:
        self.device = params[0].device
        self.params, self.number = params, {p: t for t, p in enumerate(params)}
        self.gradients = Addresses(len(params), self.device, fleeting=True)
        self.weights, self.momenta = Addresses(len(params), self.device), Addresses(len(params), self.device)
        self.momentum: list[Tensor | None] = [None] * len(params)
        self.norms = torch.zeros(len(params), device=self.device)
        self.bad = torch.zeros((), dtype=torch.int32, device=self.device)
        self.aligned = False
        self._tally = tally
        self._rates: dict[float, Tensor] = {}
        self._pieces = pieces_of([chunk_cut(t, p.numel(), CHUNK) for t, p in enumerate(params)], self.device)
        self._first, self._count = integers(self._pieces.first, self.device), integers(self._pieces.counts, self.device)
        self._partial = torch.zeros(len(self._pieces.tensors), device=self.device)

    def check(self) -> None:
        """Find the tensors; norms of their gradients, and how many are not finite."""
        if len(self._rates) > _MOST_RATES:  # a schedule makes a new one every step
            self._rates.clear()
        lie = [
            [p.grad.data_ptr() for p in self.params],  # type: ignore[union-attr]
            [0 if m is None else m.data_ptr() for m in self.momentum],
            [p.data_ptr() for p in self.params],
        ]
        for table, addresses in zip((self.gradients, self.momenta, self.weights), lie, strict=True):
            table.update(addresses)
        self.aligned = all(map(all_aligned, lie))
        cut, block = self._pieces, elementwise.BLOCK
        elementwise.sfw_squares[(len(cut.tensors),)](
            self.gradients.table,
            cut.tensors,
            cut.starts,
            cut.lengths,
            self.wide(cut),
            self.bad,
            self._partial,
            BLOCK=block,
        )
        elementwise.sfw_verdict[(len(self.params),)](
            self._partial,
            self._first,
            self._count,
            largest_norm(torch.float32),
            self.bad,
            self._tally,
            self.norms,
            BLOCK=256,
        )

    def rate(self, value: float | Tensor) -> Tensor:
        """A learning rate where kernels read it; a tensor is taken as it lies, so that a captured graph sees what it becomes."""
        if isinstance(value, Tensor):
            return value.to(self.device, torch.float32)
        if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return torch.full(
                (), value, device=self.device
            )  # which is filled when the graph runs, and of no use before
        if value not in self._rates:
            self._rates[value] = torch.full((), value, device=self.device)
        return self._rates[value]

    def wide(self, pieces: Pieces) -> int:
        """How many of the pieces may be loaded 16 bytes at a time."""
        return pieces.aligned if self.aligned else 0


class Part(ABC):
    @abstractmethod
    def step(self, network: Network) -> None: ...


def _lying_like(p: Tensor, buffer: Tensor) -> Tensor:
    """The buffer, with its entries in the order in which the weight's lie in memory."""
    return buffer if buffer.stride() == p.stride() else torch.empty_like(p).copy_(buffer)


class Rest(Part):
    """SGD on what no region constrains."""

    def __init__(self, network: Network, group: Group, params: list[Tensor], states: list[State]) -> None:
        self._group, self._states = group, states
        numbers = [network.number[p] for p in params]
        if group["momentum"]:
            for t, p, state in zip(numbers, params, states, strict=True):
                network.momentum[t] = state["momentum"] = _lying_like(p, state_buffer(state, "momentum", p))
        cuts = [chunk_cut(t, p.numel(), 2 * elementwise.BLOCK) for t, p in zip(numbers, params, strict=True)]
        self._pieces = pieces_of(cuts, network.device)

    def step(self, network: Network) -> None:
        cut, group = self._pieces, self._group
        elementwise.sfw_sgd[(len(cut.tensors),)](
            network.gradients.table, network.momenta.table, network.weights.table, cut.tensors, cut.starts, cut.lengths,
            network.wide(cut), network.bad, network.rate(group["lr"]), group["momentum"], group["weight_decay"],
            MOMENTUM=group["momentum"] != 0, NESTEROV=group["nesterov"], BLOCK=elementwise.BLOCK,
        )  # fmt: skip
        for state in self._states:
            state["age"] = 1
