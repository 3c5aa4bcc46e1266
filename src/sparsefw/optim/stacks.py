"""Stacks: blocks of equal layout under one region, stepped together.

The momentum of a stack is ONE buffer (b, *shape). The momentum of each parameter is a view into it, in that parameter's own
shape and memory order, so that gradients are added without a copy and the oracle sees all blocks at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sparsefw.geometry import Ball, Groups, Spectrum
from sparsefw.geometry.precision import working_dtype
from sparsefw.geometry.subspace import start as general_start
from sparsefw.geometry.views import FIRST_STEPS
from sparsefw.optim.layout import Layout, layout_of
from sparsefw.optim.master_weights import State

# On a CPU launches are cheap and memory is slow: about 8 MB at once stay in cache from one pass to the next, and the allocator
# reuses temporaries of that size.
_ENTRIES_AT_ONCE = 2**21

# Ages stop where they cease to matter, so that compiled steps are not compiled again. By table and not by arithmetic: a
# compiler that meets different ages makes them symbols, and fails on them.
_NEXT_AGE = (*range(1, FIRST_STEPS + 1), FIRST_STEPS)


class StepTotals(NamedTuple):
    """Totals of one block over all steps: the columns of StepFigures.progress.

    taken     the number of steps
    renewed   the sum of their shares
    clamped   how many were cut at 1
    """

    taken: float
    renewed: float
    clamped: float


class StepFigures(NamedTuple):
    """The effect of the steps on each block, on the device.

    eta        (b,) the last step's share of the way to the vertex
    gained     (b,) <u, m> for its vertex u on the unit ball: divided by the dual norm of m, the quality of the oracle
    progress   (b, 3) the StepTotals of each block; kept in state dicts
    """

    eta: Tensor
    gained: Tensor
    progress: Tensor

    @property
    def taken(self) -> Tensor:
        return self.progress[:, 0]

    @property
    def renewed(self) -> Tensor:
        return self.progress[:, 1]

    @property
    def clamped(self) -> Tensor:
        return self.progress[:, 2]


def empty_figures(size: int, dtype: torch.dtype, device: torch.device) -> StepFigures:
    """Return the figures of `size` blocks before their first step."""
    zeros = torch.zeros(size, dtype=dtype, device=device)
    exact = torch.float32 if device.type == "mps" else torch.float64
    return StepFigures(zeros, torch.full_like(zeros, math.nan), torch.zeros(size, 3, dtype=exact, device=device))


class Stack:
    """Blocks of equal layout under one region, with their joint momentum buffer and warm start."""

    def __init__(
        self, region: Ball, layout: Layout, blocks: Sequence[Sequence[Tensor]], states: Sequence[Sequence[State]]
    ) -> None:
        self.region = region
        self.layout = layout
        self.blocks = [list(block) for block in blocks]
        self.states = [list(states_of_block) for states_of_block in states]
        self.signature = _signature(self.blocks)
        is_rows = isinstance(region.view, Groups) and region.view.rows
        self.by_rows = is_rows and all(layout.has_rows(block) for block in self.blocks)
        example = self.blocks[0][0]
        device = example.device
        size = len(self.blocks)
        self.dtype = working_dtype(example.dtype)
        self.momentum = torch.zeros((size, *layout.shape), dtype=self.dtype, device=device)
        self.use_figures(empty_figures(size, self.dtype, device))
        self.warm: Tensor | None = None
        entries = max(1, self.momentum.numel())
        self.blocks_at_once = max(1, _ENTRIES_AT_ONCE * size // entries) if device.type == "cpu" else size
        self.buffers = [layout.views(self.momentum[i]) for i in range(size)]
        self._adopt_states()
        self.row_buffers = [layout.rows_of_block(block) for block in self.momentum.unbind()] if self.by_rows else []

    def _adopt_states(self) -> None:
        """Copy momenta and warm starts out of the states, such as loaded ones, and make the states refer to this stack."""
        warm_starts = [block[0]["warm"] for block in self.states if "warm" in block[0]]
        for buffers, states in zip(self.buffers, self.states, strict=True):
            for buffer, state in zip(buffers, states, strict=True):
                if "momentum" in state:
                    buffer.copy_(state["momentum"])
                state["momentum"] = buffer
                state.setdefault("age", 0)
        if warm_starts:
            shape = (len(self.blocks), *warm_starts[0].shape)
            self.use_warm_starts(torch.empty(shape, dtype=self.dtype, device=self.momentum.device))

    def use_figures(self, figures: StepFigures) -> None:
        """Use these figures from now on, after copying the blocks' progress from their states into them."""
        for progress, (state, *_) in zip(figures.progress.unbind(), self.states, strict=True):
            if "progress" in state:
                progress.copy_(state["progress"])
            state["progress"] = progress
        self.figures = figures

    def use_warm_starts(self, memory: Tensor) -> None:
        """Keep the warm starts (b, m, c) of all blocks in this memory from now on; new ones are those of a first step."""
        _, length, count = memory.shape
        memory.copy_(general_start(memory.new_empty((len(self.blocks), 1, length)), count))
        for warm, (state, *_) in zip(memory.unbind(), self.states, strict=True):
            if "warm" in state and state["warm"].shape[0] == length:
                columns = min(state["warm"].shape[1], count)  # k may have changed
                warm[:, :columns].copy_(state["warm"][:, :columns])
            state["warm"] = warm
        self.warm = memory

    def write_warm_starts(self, span: slice, warm: Tensor) -> None:
        """Write the warm starts of some blocks in place, so that a captured graph finds them at the same address."""
        if self.warm is None or self.warm.shape[1:] != warm.shape[1:]:
            self.use_warm_starts(warm.new_empty((len(self.blocks), *warm.shape[1:])))
        self.warm[span].copy_(warm)  # type: ignore[index]

    def is_current(self, state: Mapping[Tensor, State]) -> bool:
        """Whether the optimizer's state still refers to this stack: not reloaded, cleared, deep-copied, moved or cast."""
        params = [p for block in self.blocks for p in block]
        states = [s for block in self.states for s in block]
        buffers = [buffer for block in self.buffers for buffer in block]
        is_ours = all(
            state.get(p) is s and s.get("momentum") is buffer
            for p, s, buffer in zip(params, states, buffers, strict=True)
        )
        return is_ours and self.signature == _signature(self.blocks)

    def slices(self) -> Iterator[StackSlice]:
        """Yield maximal slices of blocks that have gradients and the same age: normally the whole stack at once."""
        start = 0
        while start < len(self.blocks):
            if self.blocks[start][0].grad is None:
                start += 1
                continue
            age = self.states[start][0]["age"]
            stop = start + 1
            while (
                stop < len(self.blocks)
                and stop - start < self.blocks_at_once
                and self.blocks[stop][0].grad is not None
                and self.states[stop][0]["age"] == age
            ):
                stop += 1
            yield StackSlice(self, slice(start, stop), age)
            start = stop

    @property
    def iterations(self) -> int:
        """How many power iterations the next step takes, if all blocks take it together."""
        youngest = min(state["age"] for states in self.states for state in states)
        return self.region.view.iterations(youngest) if isinstance(self.region.view, Spectrum) else 0

    def advance_ages(self) -> None:
        """Record in the states that every block has taken a step."""
        for states in self.states:
            for state in states:
                state["age"] = _NEXT_AGE[state["age"]]


class StackSlice(NamedTuple):
    """Consecutive blocks of a stack, all with gradients and of the same age."""

    stack: Stack
    span: slice
    age: int

    @property
    def is_first_step(self) -> bool:
        return self.age == 0

    def vertex(self, region: Ball, healthy: Tensor | None) -> Tensor:
        """Return the oracle's vertices at the momentum, on the unit ball; a healthy step renews the warm starts."""
        stack = self.stack
        span = self.span
        momentum = stack.momentum[span]
        warm = None if stack.warm is None or self.is_first_step else stack.warm[span]
        iterations = region.view.iterations(self.age) if isinstance(region.view, Spectrum) else 0
        vertex, renewed = region.oracle(momentum, warm, iterations)
        if renewed is not None:
            keep_old = healthy is not None and warm is not None and warm.shape == renewed.shape
            renewed = torch.where(healthy, renewed, warm) if keep_old else renewed  # type: ignore[arg-type]
            stack.write_warm_starts(span, renewed)
        if isinstance(region.view, Spectrum):
            stack.figures.gained[span].copy_((vertex * momentum).flatten(1).sum(-1))
        return vertex.contiguous()

    def record(self, eta: Tensor, clamped: Tensor, healthy: Tensor | None) -> None:
        """Record a step in the figures and ages; where gradients were not healthy, no step counts as taken."""
        figures = self.stack.figures
        span = self.span
        figures.eta[span].copy_(eta)
        figures.taken[span].add_(1 if healthy is None else healthy)
        figures.renewed[span].add_(eta)
        figures.clamped[span].add_(clamped)
        for states in self.stack.states[span]:
            for state in states:
                state["age"] = _NEXT_AGE[self.age]


def build_stacks(
    region: Ball, blocks: Sequence[Sequence[Tensor]], axes: Sequence[int], states: Sequence[Sequence[State]]
) -> list[Stack]:
    """Return the blocks sorted into stacks of equal layout, dtype and device, in the order of their first appearance."""
    members: dict[tuple, list[int]] = {}
    for i, block in enumerate(blocks):
        key = (layout_of(region, block, axes), tuple((t.dtype, t.device) for t in block))
        members.setdefault(key, []).append(i)
    return [
        Stack(region, layout, [blocks[i] for i in indices], [states[i] for i in indices])
        for (layout, _), indices in members.items()
    ]


def _signature(blocks: Sequence[Sequence[Tensor]]) -> list[tuple]:
    return [(t.device, t.dtype, t.shape, t.stride()) for block in blocks for t in block]


def block_gradient_norms(norms: Mapping[Tensor, Tensor], blocks: Sequence[Sequence[Tensor]]) -> Tensor:
    """Return the L2 norm of each block's gradient from the norms of its tensors' gradients."""
    rows = [[norms[t] for t in block] for block in blocks]
    if all(len(row) == 1 for row in rows):
        return torch.stack([row[0] for row in rows])
    return torch.stack([torch.stack(row).square().sum().sqrt() for row in rows])
