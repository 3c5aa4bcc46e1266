"""Stages: one kind of compression of one model. Units to allocate over, how a choice is carried out, how it is refitted."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sparsefw.compression import lowrank, weights
from sparsefw.compression.allocate import Allocation, Global, Uniform, Unit
from sparsefw.compression.attention import PlainAttention
from sparsefw.compression.channels import EACH, HEADS, IN, OUT, Channels, Site, find_channels
from sparsefw.compression.filters import removable_channels, removal
from sparsefw.compression.layers import AnyConv, as_matrices, chosen, is_layer, set_weight, shared_layers, weight_of
from sparsefw.compression.plan import Edit, Keep, Split, Thin, Truncate, Untouched, Zero
from sparsefw.compression.refit import Point, Solution, best_rank, on_support
from sparsefw.compression.score import SCORES, Observed, readers_of
from sparsefw.compression.slices import zero_filters
from sparsefw.layer_types import CONVOLUTIONS, TRANSPOSED

COMPUTED = "its weight is computed from others"


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

    def __init__(
        self, model: nn.Module, allocation: Allocation, selection: Selection, untouched: Sequence[Untouched] = ()
    ) -> None:
        self.model, self.allocation, self.selection = model, allocation, selection
        self.untouched = tuple(untouched)
        self.units: list[Unit] = []

    def counts(self, level: float) -> list[int]:
        """How many each unit keeps at a level; level 0 leaves everything, rounding included. There may be no unit left."""
        if level == 0 or not self.units:
            return [unit.count for unit in self.units]
        kept = self.allocation.kept(self.units, level)
        return [unit.rounded(count, self.selection.round_to) for unit, count in zip(self.units, kept, strict=True)]

    def removed_share(self, counts: Sequence[int]) -> float:
        total = sum(unit.count for unit in self.units)
        return 1 - sum(counts) / total if total else 0.0

    def build(self, counts: Sequence[int]) -> Built:
        """A copy on which the choice is carried out."""
        edits, small = self.edits(counts), copy.deepcopy(self.model)
        for edit in edits:
            edit.apply(small)
        by_layer = {edit.layer: edit for edit in edits if not isinstance(edit, Keep)}

        def write(name: str, solution: Solution) -> Tensor:
            return self.write(small.get_submodule(name), by_layer.get(name), solution)

        return Built(small, tuple(edits), (*self.untouched, *self.remarks(edits), *self.too_coarse(counts)), write)

    def too_coarse(self, counts: Sequence[int]) -> list[Untouched]:
        """Units that keep everything because they have no more than the multiple to which counts are rounded."""
        multiple = self.selection.round_to
        return [
            Untouched(unit.name, f"has {unit.count * unit.width}, no more than round_to={multiple} keeps")
            for unit, count in zip(self.units, counts, strict=True)
            if count == unit.count > 1 and unit.rounded(1, multiple) == unit.count
        ]

    @abstractmethod
    def edits(self, counts: Sequence[int]) -> list[Edit]:
        """What keeping so many of each unit means for the layers."""

    def remarks(self, edits: Sequence[Edit]) -> list[Untouched]:
        """What the user should know about this choice."""
        return []

    def write(self, layer: nn.Module, edit: Any, solution: Solution) -> Tensor:
        """Give a layer of the copy, which had this edit, its refitted weight; returns it, as matrices. Zeros stay zeros."""
        weight = on_support(solution, as_matrices(layer) != 0)
        set_weight(layer, weight)
        return weight


class Filters(Stage):
    """Sets of channels with their scores; the smallest go first, equally many from every block."""

    def __init__(
        self,
        model: nn.Module,
        example: Any,
        score: str,
        observed: Observed,
        allocation: Allocation,
        selection: Selection,
    ) -> None:
        self.selection = selection
        self.sets, untouched = self.find(model, example)
        super().__init__(model, allocation, selection, untouched)
        self.scores = [SCORES[score](model, channels, observed) for channels in self.sets]
        self.units = [
            Unit(c.name, s, len(set(c.blocks)), _width(model, c)) for c, s in zip(self.sets, self.scores, strict=True)
        ]

    @abstractmethod
    def find(self, model: nn.Module, example: Any) -> tuple[list[Channels], list[Untouched]]:
        """The sets that may lose channels, and what was left out."""

    def removed(self, counts: Sequence[int]) -> dict[Channels, list[int]]:
        chosen_sets = zip(self.sets, self.scores, counts, strict=True)
        return {c: _smallest(c, scores, c.count - kept) for c, scores, kept in chosen_sets}


def _width(model: nn.Module, channels: Channels) -> int:
    """How many channels go at once: those of a head, or one."""
    heads = [site for site in channels.sites if site.side == HEADS]
    return int(model.get_submodule(heads[0].layer).head_dim) if heads else 1  # type: ignore[arg-type]


class RemovedFilters(Filters):
    """Channels removed with everything that belongs to them."""

    def find(self, model: nn.Module, example: Any) -> tuple[list[Channels], list[Untouched]]:
        found = removable_channels(model, example)
        sets = [c for c in found if not c.fixed and all(self.selection.takes(site.layer) for site in c.writers)]
        untouched = [Untouched(c.name, c.fixed) for c in found if c.fixed and c.writers]
        return sets, untouched + [Untouched(c.name, "excluded") for c in found if not c.fixed and c not in sets]

    def edits(self, counts: Sequence[int]) -> list[Edit]:
        return removal(self.model, self.removed(counts))


class MaskedFilters(Filters):
    """Filters of every convolution zeroed in place, each convolution for itself: the paper's protocol."""

    def find(self, model: nn.Module, example: Any) -> tuple[list[Channels], list[Untouched]]:
        found = find_channels(model, example)
        ends = {site.layer: c.fixed for c in found if _is_output(c) for site in c.sites if site.side != IN}
        kinds = (*CONVOLUTIONS, *TRANSPOSED)
        taken = {n: m for n, m in model.named_modules() if isinstance(m, kinds) and self.selection.takes(n)}
        layers = {n: m for n, m in taken.items() if isinstance(m.weight, nn.Parameter)}
        computed = [Untouched(n, COMPUTED) for n in taken if n not in layers]
        sets = [
            Channels(
                (Site(n, OUT, tuple((i,) for i in range(m.out_channels))), *readers_of(found, n, m.out_channels)),
                (0,) * m.out_channels,
            )
            for n, m in layers.items()
            if n not in ends
        ]
        return sets, [*computed, *(Untouched(n, ends[n]) for n in layers if n in ends)]

    def edits(self, counts: Sequence[int]) -> list[Edit]:
        return [Zero(channels.name, tuple(gone)) for channels, gone in self.removed(counts).items()]

    def write(self, layer: nn.Module, edit: Zero | None, solution: Solution) -> Tensor:
        weight = super().write(layer, edit, solution)
        zero_filters(layer, edit.filters if edit is not None else ())  # also their bias
        return weight


def _smallest(channels: Channels, scores: Tensor, count: int) -> list[int]:
    blocks = torch.as_tensor(channels.blocks)
    labels = blocks.unique().tolist()
    gone: list[int] = []
    for block in labels:
        members = (blocks == block).nonzero().flatten()
        gone += members[scores[members].argsort(stable=True)[: count // len(labels)]].tolist()
    return sorted(gone)


def _is_output(channels: Channels) -> bool:
    """Channels that end in the model's output, or that no layer reads."""
    return channels.fixed == "the model's output" or bool(channels.fixed and not channels.readers)


class LowRank(Stage):
    """Layers split in two; one that would not get smaller stays one, with the truncated weight."""

    def __init__(self, model: nn.Module, allocation: Allocation, selection: Selection, order: Sequence[str]) -> None:
        """`order`: the names of the layers as they are called. The last one writes the output and keeps its rank."""
        shared = shared_layers(model)

        def obstacle(name: str) -> str:
            if name in shared:
                return f"shares its weight with {shared[name]}"
            if name == order[-1]:
                return "the model's output"
            return lowrank.obstacle(model, name)

        taken = [n for n, m in model.named_modules() if is_layer(m) and selection.takes(n)]
        reasons = {n: obstacle(n) for n in order if n in taken}
        reasons |= {n: "never called by itself" for n in taken if n not in reasons}
        super().__init__(model, allocation, selection, [Untouched(n, r) for n, r in reasons.items() if r])
        self.layers = {n: model.get_submodule(n) for n, reason in reasons.items() if not reason}
        self.units = [Unit(n, _spectrum(layer)) for n, layer in self.layers.items()]

    def counts(self, level: float) -> list[int]:
        if level and isinstance(self.allocation, Uniform):  # floor, as the paper's: at least what was asked is removed
            return [lowrank.kept_rank(layer, level, self.selection.round_to) for layer in self.layers.values()]
        return super().counts(level)

    def edits(self, counts: Sequence[int]) -> list[Edit]:
        return [
            Split(name, rank) if lowrank.is_smaller(layer, rank) else Truncate(name, rank)
            for (name, layer), rank in zip(self.layers.items(), counts, strict=True)
            if rank < lowrank.full_rank(layer)
        ]

    def remarks(self, edits: Sequence[Edit]) -> list[Untouched]:
        return [Untouched(e.layer, "two layers would not be smaller") for e in edits if isinstance(e, Truncate)]

    def write(self, layer: nn.Module, edit: Split | Truncate | None, solution: Solution) -> Tensor:
        if edit is None:
            return super().write(layer, edit, solution)
        weight = best_rank(solution, edit.rank)
        if isinstance(layer, nn.Sequential):
            outer, inner = lowrank.factors(weight, edit.rank)
            set_weight(layer[0], inner)
            set_weight(layer[1], outer)
        else:
            set_weight(layer, weight)
        return weight


def _spectrum(layer: nn.Module) -> Tensor:
    """Singular values; of grouped layers the root mean square over the groups, since all groups keep the same rank."""
    values = lowrank.singular_values(as_matrices(layer))
    return values.square().mean(0).sqrt().cpu()


class SparseWeights(Stage):
    """Entries zeroed by magnitude."""

    def __init__(
        self, model: nn.Module, allocation: Allocation, selection: Selection, pattern: tuple[int, int] | None = None
    ) -> None:
        taken = [(n, m) for n, m in model.named_modules() if is_layer(m) and selection.takes(n)]
        excluded = {m.weight: n for n, m in model.named_modules() if is_layer(m) and not selection.takes(n)}
        reasons = {
            n: f"shares its weight with {excluded[m.weight]}, which is excluded"
            for n, m in taken
            if m.weight in excluded
        }
        reasons |= {n: COMPUTED for n, m in taken if not isinstance(m.weight, nn.Parameter)}
        super().__init__(model, allocation, selection, [Untouched(n, r) for n, r in reasons.items()])
        self.pattern = pattern
        found = [(n, m) for n, m in taken if n not in reasons]
        owners = {weight_of(m): n for n, m in reversed(found)}  # a weight that several layers share is one weight
        self.layers = {n: m for n, m in found if owners[weight_of(m)] == n}
        self.weights: dict[str, Tensor] = {n: weight_of(m) for n, m in self.layers.items()}
        self.units = [Unit(n, w.detach().abs().flatten().float().cpu()) for n, w in self.weights.items()]

    def counts(self, level: float) -> list[int]:
        if self.pattern is not None:
            return [int(weights.n_m_mask(layer, *self.pattern).sum()) for layer in self.layers.values()]
        if level and self.units and isinstance(self.allocation, Global):
            # by raw magnitude, as the paper's: exactly floor(level * N) go
            return [int(mask.sum()) for mask in weights.global_masks(self.weights, level).values()]
        return super().counts(level)

    def edits(self, counts: Sequence[int]) -> list[Edit]:
        kept = zip(self.weights.items(), counts, strict=True)
        return [Thin(name, count, weight.numel(), self.pattern or ()) for (name, weight), count in kept]

    def remarks(self, edits: Sequence[Edit]) -> list[Untouched]:
        thin = [e for e in edits if isinstance(e, Thin) and e.nonzero < 0.01 * e.of]
        return [Untouched(e.layer, f"nearly empty: {e.nonzero} of {e.of} weights left", note=True) for e in thin]


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
