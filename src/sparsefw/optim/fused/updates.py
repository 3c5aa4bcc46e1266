"""The updates of a fused step: SGD, and Frank-Wolfe steps of blocks that are chosen by rows or by entries.

An update steps tensors of all layers in a few launches. Blocks belong to one update where they have the same kind of view, gauge
and step-size rule, whatever their shape, k, radius and learning rate. A gauge enters by its support k and its tip: its maximizer
is proportional to the k largest magnitudes, or, for entries, flat on them. Blocks of other gauges take plain steps.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsefw.geometry import Ball
from sparsefw.geometry.gauges import Tip
from sparsefw.optim.fused import elementwise, entries, rows
from sparsefw.optim.fused.addresses import Addresses, Tiling, chunk_tiling, integers, pieces_of, row_tiling
from sparsefw.optim.fused.common import rule_number, rule_scales
from sparsefw.optim.fused.tensor_table import TensorTable
from sparsefw.optim.groups import Group
from sparsefw.optim.master_weights import State, state_buffer
from sparsefw.optim.stacks import Stack, StepFigures


class Update(ABC):
    """Steps some of the tensors."""

    @abstractmethod
    def step(self, table: TensorTable) -> None:
        """Launch the kernels of one step."""


class SGDUpdate(Update):
    """SGD on the tensors of a group without a region."""

    def __init__(self, table: TensorTable, group: Group, params: list[Tensor], states: list[State]) -> None:
        self._group = group
        self._states = states
        numbers = [table.number[p] for p in params]
        if group["momentum"]:
            for t, p, state in zip(numbers, params, states, strict=True):
                buffer = _in_memory_order_of(p, state_buffer(state, "momentum", p))
                state["momentum"] = buffer
                table.buffers[t] = buffer
        tilings = [chunk_tiling(t, p.numel(), 2 * elementwise.SPAN) for t, p in zip(numbers, params, strict=True)]
        self._pieces = pieces_of(tilings, table.device)

    def step(self, table: TensorTable) -> None:
        pieces = self._pieces
        group = self._group
        elementwise.sfw_sgd[(len(pieces.tensors),)](
            table.gradients.table, table.momenta.table, table.weights.table, pieces.tensors, pieces.starts, pieces.lengths,
            table.aligned_pieces(pieces), table.bad, table.rate(group["lr"]), group["momentum"], group["weight_decay"],
            MOMENTUM=group["momentum"] != 0, NESTEROV=group["nesterov"], SPAN=elementwise.SPAN,
        )  # fmt: skip
        for state in self._states:
            state["age"] = 1


def _in_memory_order_of(p: Tensor, buffer: Tensor) -> Tensor:
    """Return the buffer with its entries in the memory order of the weight."""
    return buffer if buffer.stride() == p.stride() else torch.empty_like(p).copy_(buffer)


@dataclass(frozen=True)
class FusedBlock:
    """One block of an update.

    group, stack, index   the param group, the stack, and the block's index there
    tensors               the numbers of its tensors
    """

    group: Group
    stack: Stack
    index: int
    tensors: list[int]

    @property
    def region(self) -> Ball:
        return self.group["region"]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stack.layout.shape

    @property
    def support(self) -> int:
        return self.region.gauge.support(self.region.count(self.shape))


class BlockUpdate(Update):
    """Frank-Wolfe steps of blocks with one kind of view and one step-size rule."""

    def __init__(self, table: TensorTable, blocks: list[FusedBlock]) -> None:
        device = table.device
        self.device = device
        self.blocks = blocks
        self.rule = rule_number(blocks[0].group["rescale"])
        for block in blocks:
            for t, buffer in zip(block.tensors, block.stack.buffers[block.index], strict=True):
                table.buffers[t] = buffer
        # Rounded to float32, the dtype of weights: at a vertex the distance to it is then exactly 0.
        self.radii = _doubles([block.region.radius for block in blocks], device).float().double()
        scales = [
            rule_scales(block.group["rescale"], block.region.diameter(block.shape), math.prod(block.shape))
            for block in blocks
        ]
        self.scales = _doubles(scales, device)
        self.supports = integers([block.support for block in blocks], device)
        self.rates = Addresses(len(blocks), device, fleeting=True)
        self.part_tensor = integers([t for block in blocks for t in block.tensors], device)
        block_of_tensor = [0] * len(table.params)
        for b, block in enumerate(blocks):
            for t in block.tensors:
                block_of_tensor[t] = b
        self.block_of_tensor = integers(block_of_tensor, device)
        self.decay = torch.ones(len(blocks), device=device)
        self.stacks = [block.stack for block in blocks if block.index == 0]
        self.figures = _join_figures(self.stacks)

    def step(self, table: TensorTable) -> None:
        groups = {id(block.group): block.group for block in self.blocks}
        # An attribute, so that the tensors live while kernels read them.
        self._rates = {key: table.rate(group["lr"]) for key, group in groups.items()}
        self.rates.update([self._rates[id(block.group)].data_ptr() for block in self.blocks])
        self.launch(table)
        for stack in self.stacks:
            stack.advance_ages()

    @property
    def rho(self) -> float:
        return self.blocks[0].group["momentum"]

    @abstractmethod
    def launch(self, table: TensorTable) -> None:
        """Launch the kernels that update momenta, choose vertices and move the weights."""


class RowsUpdate(BlockUpdate):
    """Few rows may grow."""

    def __init__(self, table: TensorTable, blocks: list[FusedBlock]) -> None:
        super().__init__(table, blocks)
        tilings: list[Tiling] = []
        first_part: list[int] = []
        for block in blocks:
            first_part.append(len(tilings))
            rows = block.shape[0]
            stride = block.stack.momentum[block.index].numel() // rows
            tilings += [row_tiling(t, rows, table.params[t].numel() // rows, stride) for t in block.tensors]
        pieces = pieces_of(tilings, self.device)
        self._pieces = pieces
        self._rows = integers([block.shape[0] for block in blocks], self.device)
        self._parts = integers([len(block.tensors) for block in blocks], self.device)
        self._first_part = integers(first_part, self.device)
        self._part_piece = integers(pieces.first, self.device)
        self._figures = torch.zeros(3, len(pieces.tensors), dtype=torch.float64, device=self.device)
        self._factor = torch.zeros(len(pieces.tensors), device=self.device)
        self._most_rows = 1 << (max(block.shape[0] for block in blocks) - 1).bit_length()  # a power of 2

    def launch(self, table: TensorTable) -> None:
        pieces = self._pieces
        count = len(pieces.tensors)
        arguments = (
            table.momenta.table,
            table.weights.table,
            pieces.tensors,
            pieces.starts,
            pieces.own_starts,
            pieces.lengths,
        )
        elementwise.sfw_momentum[(count,)](
            table.gradients.table, *arguments, table.aligned_pieces(pieces), table.bad, self.rho, self._figures, count,
            SPAN=elementwise.SPAN,
        )  # fmt: skip
        rows.sfw_choose_rows[(len(self.blocks),)](
            self._figures, count, self._rows, self.supports, self._parts, self._first_part, self._part_piece,
            self.part_tensor, self.radii, self.scales, self.rates.table, table.norms, table.bad, self.decay,
            self._factor, self.figures.eta, self.figures.progress,
            RULE=self.rule, ROWS=max(16, self._most_rows), num_warps=4 if self._most_rows <= 2048 else 16,
        )  # fmt: skip
        elementwise.sfw_move_rows[(count,)](
            *arguments,
            table.aligned_pieces(pieces),
            self.block_of_tensor,
            self.decay,
            self._factor,
            SPAN=elementwise.SPAN,
        )


class EntriesUpdate(BlockUpdate):
    """Few entries may grow."""

    def __init__(self, table: TensorTable, blocks: list[FusedBlock]) -> None:
        super().__init__(table, blocks)
        self._flat = blocks[0].region.gauge.tip is Tip.FLAT
        tensors = [block.tensors[0] for block in blocks]
        pieces = pieces_of([chunk_tiling(t, table.params[t].numel(), entries.SPAN) for t in tensors], self.device)
        self._pieces = pieces
        self._first = integers(pieces.first, self.device)
        self._count = integers(pieces.counts, self.device)
        self._counts = torch.zeros(len(blocks), entries.COUNTS, dtype=torch.int32, device=self.device)
        self._figures = torch.zeros(6, len(pieces.tensors), dtype=torch.float64, device=self.device)
        self._allowed = torch.zeros(len(pieces.tensors), dtype=torch.int32, device=self.device)
        self._threshold, self._needed = torch.zeros(2, len(blocks), dtype=torch.int32, device=self.device)
        self._factor = torch.zeros(len(blocks), device=self.device)

    def launch(self, table: TensorTable) -> None:
        pieces = self._pieces
        count = len(pieces.tensors)
        span = entries.SPAN
        momenta = table.momenta.table
        weights = table.weights.table
        arguments = (pieces.tensors, pieces.starts, pieces.lengths, table.aligned_pieces(pieces), self.block_of_tensor)
        self._counts.zero_()
        entries.sfw_entry_momentum[(count,)](
            table.gradients.table, momenta, *arguments, table.bad, self.rho, self._figures, self._counts, SPAN=span,
            num_warps=8,
        )  # fmt: skip
        for number in (0, 1, 2):
            if number:
                entries.sfw_count_entries[(count,)](
                    momenta, *arguments, self._threshold, self._counts, PASS=number, SPAN=span, num_warps=8
                )
            entries.sfw_narrow_entries[(len(self.blocks),)](
                self.supports, self._counts, self._threshold, self._needed, PASS=number, num_warps=8
            )
        entries.sfw_weigh_entries[(count,)](
            momenta, weights, *arguments, self._threshold, self._figures, count, FLAT=self._flat, SPAN=span,
            num_warps=8,
        )  # fmt: skip
        entries.sfw_choose_entries[(len(self.blocks),)](
            momenta, weights, pieces.starts, pieces.lengths, self._first, self._count, self._threshold, self._needed,
            self._figures, count, self.radii, self.scales, self.rates.table, table.norms, self.part_tensor,
            table.bad, self._allowed, self.decay, self._factor, self.figures.eta, self.figures.progress,
            RULE=self.rule, FLAT=self._flat, SPAN=span,
        )  # fmt: skip
        entries.sfw_move_entries[(count,)](
            momenta, weights, *arguments, self._threshold, self._allowed, self.decay, self._factor, FLAT=self._flat,
            SPAN=span, num_warps=8,
        )  # fmt: skip


def _doubles(values: Sequence[float] | Sequence[Sequence[float]], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).to(device)


def _join_figures(stacks: Sequence[Stack]) -> StepFigures:
    """Return the figures of all stacks one after the other, and make each stack use its part of them."""
    joined = StepFigures(*(torch.cat(parts) for parts in zip(*(stack.figures for stack in stacks), strict=True)))
    start = 0
    for stack in stacks:
        stop = start + len(stack.blocks)
        stack.use_figures(StepFigures(*(figure[start:stop] for figure in joined)))
        start = stop
    return joined
