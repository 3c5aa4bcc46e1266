"""Blocks of all layers that look at their magnitudes the same way, stepped together: rows, entries.

A gauge enters by its support k and its tip: its maximizer is proportional to the k largest magnitudes, or, for entries, flat
on them. Others take plain steps.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsefw.geometry import Ball
from sparsefw.geometry.gauges import Tip
from sparsefw.optim.fused import elementwise, entries, rows
from sparsefw.optim.fused.addresses import Addresses, Cut, chunk_cut, integers, pieces_of, row_cut
from sparsefw.optim.fused.common import rule_number, rule_scales
from sparsefw.optim.fused.network import Group, Network, Part
from sparsefw.optim.stacks import Figures, Stack


@dataclass
class Member:
    """One block: where it comes from, and the numbers of its tensors."""

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


class Bundle(Part):
    """Blocks of one kind of view and one step-size rule, whatever their shape, k, radius and learning rate."""

    def __init__(self, network: Network, members: list[Member]) -> None:
        device = network.device
        self.members, self.device = members, device
        self.rule = rule_number(members[0].group["rescale"])
        for member in members:
            for t, buffer in zip(member.tensors, member.stack.buffers[member.index], strict=True):
                network.momentum[t] = buffer
        # As float32, which weights are: at a vertex the distance to it is then exactly 0.
        self.radii = _doubles([member.region.radius for member in members], device).float().double()
        self.scales = _doubles(
            [rule_scales(member.group["rescale"], member.region.diameter(member.shape)) for member in members], device
        )
        self.supports = integers([member.support for member in members], device)
        self.rates = Addresses(len(members), device, fleeting=True)
        self.part_tensor = integers([t for member in members for t in member.tensors], device)
        block_of = [0] * len(network.params)
        for b, member in enumerate(members):
            for t in member.tensors:
                block_of[t] = b
        self.blocks = integers(block_of, device)
        self.decay = torch.ones(len(members), device=device)
        self.stacks = [member.stack for member in members if member.index == 0]
        self.figures = _joined(self.stacks)

    def step(self, network: Network) -> None:
        groups = {id(member.group): member.group for member in self.members}
        self._rates = {key: network.rate(group["lr"]) for key, group in groups.items()}
        self.rates.update([self._rates[id(member.group)].data_ptr() for member in self.members])
        self.launch(network)
        for stack in self.stacks:
            stack.grow_older()

    @property
    def rho(self) -> float:
        return self.members[0].group["momentum"]

    @abstractmethod
    def launch(self, network: Network) -> None: ...


class Rows(Bundle):
    def __init__(self, network: Network, members: list[Member]) -> None:
        super().__init__(network, members)
        cuts: list[Cut] = []
        first_part: list[int] = []
        for member in members:
            first_part.append(len(cuts))
            count, apart = member.shape[0], member.stack.momentum[member.index].numel() // member.shape[0]
            cuts += [row_cut(t, count, network.params[t].numel() // count, apart) for t in member.tensors]
        self._pieces = cut = pieces_of(cuts, self.device)
        self._rows = integers([member.shape[0] for member in members], self.device)
        self._parts = integers([len(member.tensors) for member in members], self.device)
        self._first_part, self._part_piece = integers(first_part, self.device), integers(cut.first, self.device)
        self._figures = torch.zeros(3, len(cut.tensors), dtype=torch.float64, device=self.device)
        self._factor = torch.zeros(len(cut.tensors), device=self.device)
        self._most = 1 << (max(member.shape[0] for member in members) - 1).bit_length()

    def launch(self, network: Network) -> None:
        cut, count = self._pieces, len(self._pieces.tensors)
        where = (network.momenta.table, network.weights.table, cut.tensors, cut.starts, cut.own_starts, cut.lengths)
        elementwise.sfw_momentum[(count,)](
            network.gradients.table, *where, network.wide(cut), network.bad, self.rho, self._figures, count,
            BLOCK=elementwise.BLOCK,
        )  # fmt: skip
        rows.sfw_choose_rows[(len(self.members),)](
            self._figures, count, self._rows, self.supports, self._parts, self._first_part, self._part_piece,
            self.part_tensor, self.radii, self.scales, self.rates.table, network.norms, network.bad, self.decay,
            self._factor, self.figures.eta, self.figures.progress,
            RULE=self.rule, ROWS=max(16, self._most), num_warps=4 if self._most <= 2048 else 16,
        )  # fmt: skip
        elementwise.sfw_move_rows[(count,)](
            *where, network.wide(cut), self.blocks, self.decay, self._factor, BLOCK=elementwise.BLOCK
        )


class Entries(Bundle):
    def __init__(self, network: Network, members: list[Member]) -> None:
        super().__init__(network, members)
        self._flat = members[0].region.gauge.tip is Tip.FLAT
        self._pieces = cut = pieces_of(
            [chunk_cut(m.tensors[0], network.params[m.tensors[0]].numel(), entries.BLOCK) for m in members], self.device
        )
        self._first, self._count = integers(cut.first, self.device), integers(cut.counts, self.device)
        self._counts = torch.zeros(len(members), entries.COUNTS, dtype=torch.int32, device=self.device)
        self._figures = torch.zeros(6, len(cut.tensors), dtype=torch.float64, device=self.device)
        self._allowed = torch.zeros(len(cut.tensors), dtype=torch.int32, device=self.device)
        self._threshold, self._needed = torch.zeros(2, len(members), dtype=torch.int32, device=self.device)
        self._factor = torch.zeros(len(members), device=self.device)

    def launch(self, network: Network) -> None:
        cut, count, block = self._pieces, len(self._pieces.tensors), entries.BLOCK
        momenta, weights = network.momenta.table, network.weights.table
        pieces = (cut.tensors, cut.starts, cut.lengths, network.wide(cut), self.blocks)
        self._counts.zero_()
        entries.sfw_entry_momentum[(count,)](
            network.gradients.table, momenta, *pieces, network.bad, self.rho, self._figures, self._counts, BLOCK=block,
            num_warps=8,
        )  # fmt: skip
        for number in (0, 1, 2):
            if number:
                entries.sfw_count_entries[(count,)](
                    momenta, *pieces, self._threshold, self._counts, PASS=number, BLOCK=block, num_warps=8
                )
            entries.sfw_narrow_entries[(len(self.members),)](
                self.supports, self._counts, self._threshold, self._needed, PASS=number, num_warps=8
            )
        entries.sfw_weigh_entries[(count,)](
            momenta, weights, *pieces, self._threshold, self._figures, count, FLAT=self._flat, BLOCK=block,
            num_warps=8,
        )  # fmt: skip
        entries.sfw_choose_entries[(len(self.members),)](
            momenta, weights, cut.starts, cut.lengths, self._first, self._count, self._threshold, self._needed,
            self._figures, count, self.radii, self.scales, self.rates.table, network.norms, self.part_tensor,
            network.bad, self._allowed, self.decay, self._factor, self.figures.eta, self.figures.progress,
            RULE=self.rule, FLAT=self._flat, BLOCK=block,
        )  # fmt: skip
        entries.sfw_move_entries[(count,)](
            momenta, weights, *pieces, self._threshold, self._allowed, self.decay, self._factor, FLAT=self._flat,
            BLOCK=block, num_warps=8,
        )  # fmt: skip


def _doubles(values: Sequence[float] | Sequence[Sequence[float]], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).to(device)


def _joined(stacks: Sequence[Stack]) -> Figures:
    """The figures of all stacks one after the other; each keeps its own as a view."""
    joined = Figures(*(torch.cat(parts) for parts in zip(*(stack.figures for stack in stacks), strict=True)))
    start = 0
    for stack in stacks:
        size = len(stack.blocks)
        stack.own_figures(Figures(*(figure[start : start + size] for figure in joined)))
        start += size
    return joined
