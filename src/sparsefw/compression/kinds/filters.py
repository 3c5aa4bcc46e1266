"""Filters, neurons and heads: channels removed with all that belongs to them, or zeroed in place (masked, the paper's)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sparsefw.compression.allocate import Unit
from sparsefw.compression.artifact.plan import Edit, Mute, Untouched, Zero
from sparsefw.compression.kinds.stage import COMPUTED, Job, Stage, cuts
from sparsefw.compression.recovery.cut import Solution
from sparsefw.compression.score import NEEDS_DATA, SCORES, observe, readers_of
from sparsefw.compression.structure.channels import HEADS, IN, OUT, Channels, Site, find_channels
from sparsefw.compression.structure.removal import removable_channels, removal
from sparsefw.compression.structure.surgery import size, zero_filters
from sparsefw.kinds import FILTERS, NEURONS, Kind
from sparsefw.kinds import HEADS as heads  # noqa: N811  (channels.py has a side of that name)


@cuts(FILTERS.family, NEURONS.family, heads.family)
class Filters(Stage):
    """Sets of channels with their scores; the smallest go first, equally many from every block."""

    def __init__(self, job: Job) -> None:
        self.job, self.selection, model = job, job.settings.selection, job.model
        self.sets, untouched = self.find(model, job.example)
        super().__init__(model, job.allocation, job.settings.selection, untouched)
        observed = observe(model, job.example, job.calibration if job.settings.score in NEEDS_DATA else None)
        self.scores = [SCORES[job.settings.score](model, channels, observed) for channels in self.sets]
        self.units = [
            Unit(c.name, s, len(set(c.blocks)), _width(model, c)) for c, s in zip(self.sets, self.scores, strict=True)
        ]

    @classmethod
    def of(cls, job: Job) -> Stage:
        if job.settings.score in NEEDS_DATA and job.calibration is None:
            raise ValueError(f"score={job.settings.score!r} needs calibration=")
        if job.settings.form == "removed":
            return RemovedFilters(job)
        return (MaskedHeads if job.kind is heads else MaskedFilters)(job)

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
        found = [c for c in removable_channels(model, example) if self._is_asked_for(c)]
        sets = [c for c in found if not c.fixed and all(self.selection.takes(site.layer) for site in c.writers)]
        untouched = [Untouched(c.name, c.fixed) for c in found if c.fixed and c.writers]
        return sets, untouched + [Untouched(c.name, "excluded") for c in found if not c.fixed and c not in sets]

    def _is_asked_for(self, channels: Channels) -> bool:
        """Filters are all channels but for those that another kind is asked to remove; the other kinds have their own."""
        own = _kind_of_channels(self.job.model, channels)
        return own not in self.job.others if self.job.kind is FILTERS else own is self.job.kind

    def edits(self, counts: Sequence[int]) -> list[Edit]:
        return removal(self.model, self.removed(counts))


class MaskedFilters(Filters):
    """Filters of every convolution (neurons of every linear layer) zeroed in place, each for itself: the paper's protocol."""

    layer_word = "convolution"

    def find(self, model: nn.Module, example: Any) -> tuple[list[Channels], list[Untouched]]:
        found = find_channels(model, example)
        ends = {site.layer: c.fixed for c in found if _is_output(c) for site in c.sites if site.side != IN}
        types = self.job.kind.layers
        taken = {n: m for n, m in model.named_modules() if isinstance(m, types) and self.selection.takes(n)}
        layers = {n: m for n, m in taken.items() if isinstance(m.weight, nn.Parameter)}
        computed = [Untouched(n, COMPUTED) for n in taken if n not in layers]
        sets = [
            Channels(
                (
                    Site(n, OUT, tuple((i,) for i in range(size(model, n, OUT)))),
                    *readers_of(found, n, size(model, n, OUT)),
                ),
                (0,) * size(model, n, OUT),
            )
            for n in layers
            if n not in ends
        ]
        return sets, [*computed, *(Untouched(n, ends[n]) for n in layers if n in ends)]

    def edits(self, counts: Sequence[int]) -> list[Edit]:
        return [Zero(channels.name, tuple(gone)) for channels, gone in self.removed(counts).items()]

    def write(self, layer: nn.Module, edit: Zero | None, solution: Solution) -> Tensor:
        weight = super().write(layer, edit, solution)
        zero_filters(layer, edit.filters if edit is not None else ())  # also their bias
        return weight


class MaskedHeads(Filters):
    """Heads that nothing reads any more: the output projection's columns are 0."""

    layer_word = heads.looks_for

    def find(self, model: nn.Module, example: Any) -> tuple[list[Channels], list[Untouched]]:
        found = [c for c in find_channels(model, example) if _kind_of_channels(model, c) is heads]
        sets = [c for c in found if not c.fixed and all(self.selection.takes(site.layer) for site in c.writers)]
        return sets, [Untouched(c.name, c.fixed) for c in found if c.fixed]

    def edits(self, counts: Sequence[int]) -> list[Edit]:
        return [Mute(channels.name, tuple(gone)) for channels, gone in self.removed(counts).items()]


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


def _kind_of_channels(model: nn.Module, channels: Channels) -> Kind:
    """Heads belong to attention blocks, neurons are written by linear layers alone; all other channels are filters."""
    if any(site.side == HEADS for site in channels.writers):
        return heads
    modules = [model.get_submodule(site.layer) for site in channels.writers]
    return NEURONS if modules and all(isinstance(module, NEURONS.layers) for module in modules) else FILTERS
