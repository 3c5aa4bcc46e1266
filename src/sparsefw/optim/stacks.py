"""Blocks and stacks: which tensors make one feasible point, and which points are treated in one go.

A block is what a region acts on: one weight, or several coupled ones that share their group axis (row j of the block is
everything that belongs to channel j). Blocks of equal shape under one region form a stack whose momentum lives in ONE
buffer (b, *shape); the momentum of each parameter is a view into it, in that parameter's own shape and memory order, so
that gradients are added without a copy and the oracle sees all blocks at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from sparsefw.geometry import Ball, Groups, Spectrum
from sparsefw.geometry.precision import working_dtype
from sparsefw.geometry.subspace import start
from sparsefw.geometry.views import FIRST_STEPS
from sparsefw.optim.master_weights import State

Tensors = list[Tensor]


class Part(NamedTuple):
    """One tensor's place in a block: columns start..stop, and the axis order in which it is stored there."""

    order: tuple[int, ...]
    shape: tuple[int, ...]  # in that order
    start: int
    stop: int

    def logical(self, stored: Tensor) -> Tensor:
        """The tensor as its owner sees it, aliasing its place in the block."""
        return stored.permute([self.order.index(d) for d in range(len(self.order))])


@dataclass(frozen=True)
class Layout:
    """How the tensors of a block lie in one tensor of `shape`: alone, as columns of a row matrix, or end to end."""

    shape: tuple[int, ...]
    parts: tuple[Part, ...]
    packing: str  # "alone" | "columns" | "flat"

    def views(self, block: Tensor) -> Tensors:
        """Aliases of `block`, one per tensor, each in its tensor's own shape."""
        if self.packing == "alone":
            return [self.parts[0].logical(block)]
        if self.packing == "columns":
            return [
                part.logical(
                    block[:, part.start : part.stop].unflatten(1, part.shape[1:])
                    if len(part.shape) > 1
                    else block[:, part.start]
                )
                for part in self.parts
            ]
        return [part.logical(block[part.start : part.stop].view(part.shape)) for part in self.parts]

    def gather(self, tensors: Sequence[Tensor], into: Tensor) -> Tensor:
        """`into`, a tensor of the layout's shape, filled with the tensors of a block."""
        for view, tensor in zip(self.views(into), tensors, strict=True):
            view.copy_(tensor)
        return into

    def rows(self, tensors: Sequence[Tensor]) -> Tensors:
        """The tensors as matrices whose rows are the groups, aliasing them; RuntimeError where memory does not allow it."""
        return [t.permute(part.order).view(part.shape[0], -1) for t, part in zip(tensors, self.parts, strict=True)]

    def has_rows(self, tensors: Sequence[Tensor]) -> bool:
        try:
            self.rows(tensors)
        except RuntimeError:
            return False
        return True

    def row_columns(self, block: Tensor) -> Tensors:
        """The same for a block in the layout itself."""
        return [block.view(block.shape[0], -1)[:, part.start : part.stop] for part in self.parts]


def layout_of(region: Ball, tensors: Sequence[Tensor], axes: Sequence[int]) -> Layout:
    """The layout of one block; ValueError where coupled tensors do not share their group axis."""
    if len(tensors) == 1 and axes[0] == 0:
        (tensor,) = tensors
        order = (
            _memory_order(tensor, first=0)
            if region.view.any_column_order and tensor.ndim > 1
            else tuple(range(tensor.ndim))
        )
        shape = tuple(tensor.shape[d] for d in order)
        return Layout(shape, (Part(order, shape, 0, tensor.numel() // max(shape[0], 1) if shape else 1),), "alone")
    if isinstance(region.view, Groups) and region.view.partition is not None:
        parts, start = [], 0
        for tensor in tensors:
            parts.append(Part(tuple(range(tensor.ndim)), tuple(tensor.shape), start, start + tensor.numel()))
            start += tensor.numel()
        return Layout((start,), tuple(parts), "flat")
    if not region.view.any_column_order:
        raise ValueError(f"a coupled block is a matrix with a row per channel, but {region} looks along another axis")
    counts = {tensor.shape[axis] for tensor, axis in zip(tensors, axes, strict=True)}
    if len(counts) != 1:
        shapes = ", ".join(str(tuple(t.shape)) for t in tensors)
        raise ValueError(
            f"coupled tensors must have the same length along their group axis, got shapes {shapes} and axes {list(axes)}"
        )
    parts, start = [], 0
    for tensor, axis in zip(tensors, axes, strict=True):
        order = _memory_order(tensor, first=axis)
        width = tensor.numel() // tensor.shape[axis]
        parts.append(Part(order, tuple(tensor.shape[d] for d in order), start, start + width))
        start += width
    return Layout((counts.pop(), start), tuple(parts), "columns")


def _memory_order(tensor: Tensor, first: int) -> tuple[int, ...]:
    """The axes from slow to fast in memory, with `first` in front: channels_last weights keep their own order."""
    rest = [d for d in range(tensor.ndim) if d != first]
    return (first, *sorted(rest, key=tensor.stride, reverse=True))


class Stack:
    """Blocks of equal layout under one region, with their joint momentum buffer and warm start."""

    def __init__(
        self, region: Ball, layout: Layout, blocks: Sequence[Sequence[Tensor]], states: Sequence[Sequence[State]]
    ) -> None:
        self.region, self.layout = region, layout
        self.blocks = [list(block) for block in blocks]
        self.states = [list(state) for state in states]
        self.signature = _signature(self.blocks)
        example = self.blocks[0][0]
        self.by_rows = (
            isinstance(region.view, Groups)
            and region.view.rows
            and all(layout.has_rows(block) for block in self.blocks)
        )
        self.dtype = working_dtype(example.dtype)
        size = len(self.blocks)
        self.momentum = torch.zeros((size, *layout.shape), dtype=self.dtype, device=example.device)
        self.own_figures(figures_of(size, self.dtype, example.device))
        self.warm: Tensor | None = None
        # On a CPU launches are cheap and memory is dear: about 8 MB at once stay in cache from one pass to the next, and
        # temporaries of that size are reused by the allocator.
        self.at_once = max(1, 2**21 * size // max(1, self.momentum.numel())) if example.device.type == "cpu" else size
        self.buffers = [layout.views(self.momentum[i]) for i in range(size)]
        self._adopt()
        self.row_buffers = [layout.row_columns(block) for block in self.momentum.unbind()] if self.by_rows else []

    def _adopt(self) -> None:
        """Take over the state that is there (after loading, moving or copying), and own it from now on."""
        known = [block[0]["warm"] for block in self.states if "warm" in block[0]]
        for buffers, states in zip(self.buffers, self.states, strict=True):
            for buffer, state in zip(buffers, states, strict=True):
                if "momentum" in state:
                    buffer.copy_(state["momentum"])
                state["momentum"] = buffer
                state.setdefault("age", 0)
        if known:
            self.own_warm(
                torch.empty((len(self.blocks), *known[0].shape), dtype=self.dtype, device=self.momentum.device)
            )

    def own_figures(self, figures: Figures) -> None:
        """Figures in this memory, which keep what the blocks' states know of their progress and are that from now on."""
        for progress, (state, *_) in zip(figures.progress.unbind(), self.states, strict=True):
            if "progress" in state:
                progress.copy_(state["progress"])
            state["progress"] = progress
        self.figures = figures

    def current(self, state: Mapping[Tensor, State]) -> bool:
        """Whether the state is still ours: not reloaded, cleared, deep-copied, moved to another device or cast."""
        known = zip(
            (p for block in self.blocks for p in block), (s for block in self.states for s in block), strict=True
        )
        ours = all(state.get(p) is s for p, s in known) and all(
            s.get("momentum") is b
            for bs, ss in zip(self.buffers, self.states, strict=True)
            for b, s in zip(bs, ss, strict=True)
        )
        return ours and self.signature == _signature(self.blocks)

    def runs(self) -> Iterator[Run]:
        """Maximal slices of blocks that have gradients and the same age: normally the whole stack at once."""
        start = 0
        while start < len(self.blocks):
            if self.blocks[start][0].grad is None:
                start += 1
                continue
            age, stop = self.states[start][0]["age"], start + 1
            while (
                stop < len(self.blocks)
                and stop - start < self.at_once
                and self.blocks[stop][0].grad is not None
                and self.states[stop][0]["age"] == age
            ):
                stop += 1
            yield Run(self, slice(start, stop), age)
            start = stop

    def remember(self, where: slice, warm: Tensor) -> None:
        """Keep the warm start in place, so that a captured graph finds it where it was."""
        if self.warm is None or self.warm.shape[1:] != warm.shape[1:]:
            self.own_warm(warm.new_empty((len(self.blocks), *warm.shape[1:])))
        self.warm[where].copy_(warm)  # type: ignore[index]

    def own_warm(self, memory: Tensor) -> None:
        """Warm starts (b, m, c) of all blocks in this memory; those without one begin like a first step."""
        _, length, k = memory.shape
        memory.copy_(start(memory.new_empty((len(self.blocks), 1, length)), k))
        for warm, (state, *_) in zip(memory.unbind(), self.states, strict=True):
            if "warm" in state and state["warm"].shape[0] == length:
                columns = min(state["warm"].shape[1], k)  # k may have changed
                warm[:, :columns].copy_(state["warm"][:, :columns])
            state["warm"] = warm
        self.warm = memory

    @property
    def iterations(self) -> int:
        """How many power iterations the next step takes, if all blocks take it together."""
        youngest = min(state["age"] for states in self.states for state in states)
        return self.region.view.iterations(youngest) if isinstance(self.region.view, Spectrum) else 0

    def grow_older(self) -> None:
        for states in self.states:
            for state in states:
                state["age"] = _NEXT_AGE[state["age"]]


class Figures(NamedTuple):
    """What the last step did to each block, and all steps together; on the device.

    eta        (b,) its share of the way to the vertex
    gained     (b,) <u, m> for its vertex u on the unit ball: against the dual norm of m, the quality of the oracle
    progress   (b, 3) the steps taken, the sum of their shares, and how many of them were cut at 1; kept in state dicts
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


def figures_of(size: int, dtype: torch.dtype, device: torch.device) -> Figures:
    zeros = torch.zeros(size, dtype=dtype, device=device)
    exact = torch.float32 if device.type == "mps" else torch.float64
    return Figures(zeros, torch.full_like(zeros, math.nan), torch.zeros(size, 3, dtype=exact, device=device))


# Ages stop where they cease to matter, so that compiled steps are not compiled again. By table and not by arithmetic: a compiler
# that met different ages would make them symbols, and trip over them.
_NEXT_AGE = (*range(1, FIRST_STEPS + 1), FIRST_STEPS)


class Run(NamedTuple):
    stack: Stack
    where: slice
    age: int

    @property
    def first(self) -> bool:
        return self.age == 0

    def vertex(self, region: Ball, healthy: Tensor | None) -> Tensor:
        """The oracle at the momentum, on the unit ball, from the warm start of the last step, which a healthy one renews."""
        stack, where = self.stack, self.where
        momentum = stack.momentum[where]
        warm = None if stack.warm is None or self.first else stack.warm[where]
        iterations = region.view.iterations(self.age) if isinstance(region.view, Spectrum) else 0
        vertex, renewed = region.oracle(momentum, warm, iterations)
        if renewed is not None:
            keep_old = healthy is not None and warm is not None and warm.shape == renewed.shape
            stack.remember(where, torch.where(healthy, renewed, warm) if keep_old else renewed)  # type: ignore[arg-type]
        if isinstance(region.view, Spectrum):
            stack.figures.gained[where].copy_((vertex * momentum).flatten(1).sum(-1))
        return vertex.contiguous()

    def record(self, eta: Tensor, clamped: Tensor, healthy: Tensor | None) -> None:
        """Note the step taken: none where gradients were not healthy."""
        figures, where = self.stack.figures, self.where
        figures.eta[where].copy_(eta)
        figures.taken[where].add_(1 if healthy is None else healthy)
        figures.renewed[where].add_(eta)
        figures.clamped[where].add_(clamped)
        for states in self.stack.states[where]:
            for state in states:
                state["age"] = _NEXT_AGE[self.age]


def stacks_of(
    region: Ball, blocks: Sequence[Sequence[Tensor]], axes: Sequence[int], states: Sequence[Sequence[State]]
) -> list[Stack]:
    """Blocks sorted into stacks of equal layout, dtype and device, in the order of their first appearance."""
    kinds: dict[tuple, list[int]] = {}
    for i, block in enumerate(blocks):
        key = (layout_of(region, block, axes), tuple((t.dtype, t.device) for t in block))
        kinds.setdefault(key, []).append(i)
    return [
        Stack(region, key[0], [blocks[i] for i in members], [states[i] for i in members])
        for key, members in kinds.items()
    ]


def _signature(blocks: Sequence[Sequence[Tensor]]) -> list[tuple]:
    return [(t.device, t.dtype, t.shape, t.stride()) for block in blocks for t in block]


def block_lengths(lengths: dict[Tensor, Tensor], blocks: Sequence[Sequence[Tensor]]) -> Tensor:
    """The L2 norm of each block's gradient from the norms of its tensors' gradients."""
    rows = [[lengths[t] for t in block] for block in blocks]
    if all(len(row) == 1 for row in rows):
        return torch.stack([row[0] for row in rows])
    return torch.stack([torch.stack(row).square().sum().sqrt() for row in rows])
