"""Stages: one kind of compression of one model. Units to allocate over, how a choice is carried out, how it is refitted."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sparsefw.compress import lowrank, weights
from sparsefw.compress.allocate import Allocation, Global, Uniform, Unit
from sparsefw.compress.attention import PlainAttention
from sparsefw.compress.channels import EACH, HEADS, IN, OUT, Channels, Site, find_channels
from sparsefw.compress.filters import removable_channels, removal
from sparsefw.compress.layers import (
    CONVOLUTIONS,
    TRANSPOSED,
    AnyConv,
    as_matrices,
    chosen,
    is_layer,
    replace,
    set_weight,
    shared_layers,
    weight_of,
)
from sparsefw.compress.plan import Edit, Keep, Split, Thin, Truncate, Untouched, Zero
from sparsefw.compress.refit import Point, Solution, best_rank, on_support
from sparsefw.compress.score import SCORES, Observed, readers_of
from sparsefw.compress.slices import zero_filters


@dataclass(frozen=True)
class Selection:
    """Which layers, by glob; and how counts are rounded."""

    include: tuple[str, ...] = ("*",)
    exclude: tuple[str, ...] = ()
    round_to: int = 1

    def takes(self, name: str) -> bool:
        return chosen(name, self.include, self.exclude)


@dataclass(frozen=True)
class Built:
    """A compressed copy, what was done to it, and how a least-squares solution of a layer is written into it."""

    model: nn.Module
    edits: tuple[Edit, ...]
    untouched: tuple[Untouched, ...]
    write: Callable[[str, Solution], Tensor]

    def point(self, dense: nn.Module) -> Point:
        return Point(self.model, kept_rows(dense, self.edits), self.write)


class Stage(ABC):
    """(model, how many of each unit are kept) -> a new, smaller model."""

    model: nn.Module
    units: list[Unit]
    allocation: Allocation
    selection: Selection

    def counts(self, level: float) -> list[int]:
        """How many each unit keeps at a level; level 0 leaves everything, rounding included. There may be no unit left."""
        if level == 0 or not self.units:
            return [unit.count for unit in self.units]
        kept = self.allocation.kept(self.units, level)
        return [unit.rounded(count, self.selection.round_to) for unit, count in zip(self.units, kept, strict=True)]

    def removed_share(self, counts: Sequence[int]) -> float:
        total = sum(unit.count for unit in self.units)
        return 1 - sum(counts) / total if total else 0.0

    @abstractmethod
    def build(self, counts: Sequence[int]) -> Built: ...


class RemovedFilters(Stage):
    """Channels removed with everything that belongs to them; smallest scores first, equally many from every block."""

    def __init__(
        self,
        model: nn.Module,
        example: Any,
        score: str,
        observed: Observed,
        allocation: Allocation,
        selection: Selection,
    ) -> None:
        self.model, self.allocation, self.selection = model, allocation, selection
        found = removable_channels(model, example)
        self.sets = [c for c in found if not c.fixed and all(selection.takes(site.layer) for site in c.writers)]
        self.untouched = [Untouched(c.name, c.fixed) for c in found if c.fixed and c.writers]
        self.untouched += [Untouched(c.name, "excluded") for c in found if not c.fixed and c not in self.sets]
        self.scores = [SCORES[score](model, channels, observed) for channels in self.sets]
        self.units = [Unit(c.name, s, len(set(c.blocks))) for c, s in zip(self.sets, self.scores, strict=True)]

    def build(self, counts: Sequence[int]) -> Built:
        removed = {
            c: _smallest(c, s, c.count - kept) for c, s, kept in zip(self.sets, self.scores, counts, strict=True)
        }
        edits = removal(self.model, removed)
        small = copy.deepcopy(self.model)
        for edit in edits:
            edit.apply(small)

        def write(name: str, solution: Solution) -> Tensor:
            set_weight(small.get_submodule(name), solution.weight)
            return solution.weight

        return Built(small, tuple(edits), tuple(self.untouched), write)


def _smallest(channels: Channels, scores: Tensor, count: int) -> list[int]:
    blocks = torch.as_tensor(channels.blocks)
    labels = blocks.unique().tolist()
    gone: list[int] = []
    for block in labels:
        members = (blocks == block).nonzero().flatten()
        gone += members[scores[members].argsort(stable=True)[: count // len(labels)]].tolist()
    return sorted(gone)


class MaskedFilters(Stage):
    """Filters of every convolution zeroed in place, each convolution for itself: the paper's protocol."""

    def __init__(
        self,
        model: nn.Module,
        example: Any,
        score: str,
        observed: Observed,
        allocation: Allocation,
        selection: Selection,
    ) -> None:
        self.model, self.allocation, self.selection = model, allocation, selection
        found = find_channels(model, example)
        ends = {site.layer: c.fixed for c in found if _is_output(c) for site in c.sites if site.side != IN}
        convolutions = {
            n: m for n, m in model.named_modules() if isinstance(m, (*CONVOLUTIONS, *TRANSPOSED)) and selection.takes(n)
        }
        self.untouched = tuple(Untouched(n, ends[n]) for n in convolutions if n in ends)
        self.sets = [
            Channels(
                (Site(n, OUT, tuple((i,) for i in range(m.out_channels))), *readers_of(found, n, m.out_channels)),
                (0,) * m.out_channels,
            )
            for n, m in convolutions.items()
            if n not in ends
        ]
        self.scores = [SCORES[score](model, channels, observed) for channels in self.sets]
        self.units = [Unit(c.name, s) for c, s in zip(self.sets, self.scores, strict=True)]

    def build(self, counts: Sequence[int]) -> Built:
        small, edits, gone = copy.deepcopy(self.model), [], {}
        for c, s, kept in zip(self.sets, self.scores, counts, strict=True):
            gone[c.name] = _smallest(c, s, c.count - kept)
            zero_filters(small.get_submodule(c.name), gone[c.name])
            edits.append(Zero(c.name, tuple(gone[c.name])))

        def write(name: str, solution: Solution) -> Tensor:
            layer = small.get_submodule(name)
            set_weight(layer, solution.weight)
            zero_filters(layer, gone.get(name, []))
            return as_matrices(layer).detach().double()

        return Built(small, tuple(edits), self.untouched, write)


def _is_output(channels: Channels) -> bool:
    """Channels that end in the model's output, or that no layer reads."""
    return channels.fixed == "the model's output" or bool(channels.fixed and not channels.readers)


class LowRank(Stage):
    """Layers split in two; one that would not get smaller stays one, with the truncated weight."""

    def __init__(self, model: nn.Module, allocation: Allocation, selection: Selection, order: Sequence[str]) -> None:
        self.model, self.allocation, self.selection = model, allocation, selection
        reasons = {n: lowrank.obstacle(model, n) for n in order if selection.takes(n)}
        self.names = [n for n, reason in reasons.items() if not reason]
        self.untouched = [Untouched(n, reason) for n, reason in reasons.items() if reason]
        self.untouched += [
            Untouched(n, f"shares its weight with {other}")
            for n, other in shared_layers(model).items()
            if is_layer(model.get_submodule(n)) and selection.takes(n) and n not in reasons
        ]
        self.units = [Unit(n, _spectrum(model.get_submodule(n))) for n in self.names]

    def counts(self, level: float) -> list[int]:
        if isinstance(self.allocation, Uniform):  # floor, as the paper's: at least what was asked is removed
            return [
                lowrank.kept_rank(self.model.get_submodule(n), level, self.selection.round_to) if level else u.count
                for n, u in zip(self.names, self.units, strict=True)
            ]
        return super().counts(level)

    def build(self, counts: Sequence[int]) -> Built:
        small, ranks = copy.deepcopy(self.model), dict(zip(self.names, counts, strict=True))
        edits: list[Edit] = []
        for name, rank in ranks.items():
            layer = small.get_submodule(name)
            if rank == lowrank.full_rank(layer):
                continue
            if lowrank.is_smaller(layer, rank):
                replace(small, name, lowrank.split(layer, rank))
                edits.append(Split(name, rank))
            else:
                set_weight(layer, lowrank.truncate(as_matrices(layer), rank))
                edits.append(Truncate(name, rank))

        def write(name: str, solution: Solution) -> Tensor:
            layer = small.get_submodule(name)
            rank = ranks.get(name)
            weight = (
                solution.weight if rank is None or rank >= min(solution.weight.shape[1:]) else best_rank(solution, rank)
            )
            if isinstance(layer, nn.Sequential):
                outer, inner = lowrank.factors(weight, rank or 1)
                set_weight(layer[0], inner)
                set_weight(layer[1], outer)
            else:
                set_weight(layer, weight)
            return weight

        kept_whole = [Untouched(e.layer, "two layers would not be smaller") for e in edits if isinstance(e, Truncate)]
        return Built(small, tuple(edits), (*self.untouched, *kept_whole), write)


def _spectrum(layer: nn.Module) -> Tensor:
    """Singular values; of grouped layers the root mean square over the groups, since all groups keep the same rank."""
    values = lowrank.singular_values(as_matrices(layer))
    return values.square().mean(0).sqrt().cpu()


class SparseWeights(Stage):
    """Entries zeroed by magnitude."""

    def __init__(
        self, model: nn.Module, allocation: Allocation, selection: Selection, pattern: tuple[int, int] | None = None
    ) -> None:
        self.model, self.allocation, self.selection, self.pattern = model, allocation, selection, pattern
        found = [(n, m) for n, m in model.named_modules() if is_layer(m) and selection.takes(n)]
        owners = {weight_of(m): n for n, m in reversed(found)}  # a weight that several layers share is one weight
        self.layers = {n: m for n, m in found if owners[weight_of(m)] == n}
        self.weights: dict[str, Tensor] = {n: weight_of(m) for n, m in self.layers.items()}
        self.units = [Unit(n, w.detach().abs().flatten().float().cpu()) for n, w in self.weights.items()]

    def counts(self, level: float) -> list[int]:
        if level and self.units and isinstance(self.allocation, Global):
            # by raw magnitude, as the paper's: exactly floor(level * N) go
            return [int(mask.sum()) for mask in weights.global_masks(self.weights, level).values()]
        return super().counts(level)

    def masks(self, counts: Sequence[int]) -> dict[str, Tensor]:
        if self.pattern is not None:
            return {n: weights.n_m_mask(m, *self.pattern) for n, m in self.layers.items()}
        return {
            n: weights.largest(w.detach().abs().flatten(), k).view(w.shape)
            for (n, w), k in zip(self.weights.items(), counts, strict=True)
        }

    def build(self, counts: Sequence[int]) -> Built:
        small, masks, edits, untouched = copy.deepcopy(self.model), self.masks(counts), [], []
        with torch.no_grad():
            for name, mask in masks.items():
                weight_of(small.get_submodule(name)).mul_(mask)
                edits.append(Thin(name, int(mask.sum()), mask.numel(), self.pattern or ()))
                if mask.sum() < 0.01 * mask.numel():
                    untouched.append(Untouched(name, f"nearly empty: {int(mask.sum())} of {mask.numel()} weights left"))

        def write(name: str, solution: Solution) -> Tensor:
            layer = small.get_submodule(name)
            if name not in masks:
                set_weight(layer, solution.weight)
                return solution.weight
            support = as_matrices(layer) != 0  # also zeros that were there before stay
            weight = on_support(solution, support)
            set_weight(layer, weight)
            return weight

        return Built(small, tuple(edits), tuple(untouched), write)


def kept_rows(dense: nn.Module, edits: Sequence[Edit]) -> dict[str, list[int]]:
    """For every layer that lost outputs: which of the dense layer's outputs it still computes."""
    rows: dict[str, list[int]] = {}
    for edit in edits:
        if not isinstance(edit, Keep):
            continue
        if edit.side == OUT:
            rows[edit.layer] = list(edit.kept)
        elif edit.side == EACH and edit.layer in dict(dense.named_modules()):
            module = dense.get_submodule(edit.layer)
            if isinstance(module, AnyConv):
                times = module.out_channels // module.in_channels
                rows[edit.layer] = [channel * times + i for channel in edit.kept for i in range(times)]
        elif edit.side == HEADS:
            block: Any = dense.get_submodule(edit.layer)
            own = [head * block.head_dim + i for head in edit.kept for i in range(block.head_dim)]
            inner = block.num_heads * block.head_dim
            if isinstance(block, PlainAttention):
                rows.update({f"{edit.layer}.{part}": own for part in ("query", "key", "value")})
            else:
                rows[f"{edit.layer}.qkv"] = [part * inner + row for part in range(3) for row in own]
    return rows
