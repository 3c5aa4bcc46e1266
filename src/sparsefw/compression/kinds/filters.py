"""Filters, neurons and heads: channels removed with all that belongs to them, or zeroed in place (masked, the paper's)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sparsefw.compression.allocate import Unit
from sparsefw.compression.artifact.plan import Edit, Mute, Untouched, Zero
from sparsefw.compression.kinds.stage import Stage, StageRequest, cuts
from sparsefw.compression.reasons import Cause, Reason, because
from sparsefw.compression.recovery.cut import Solution
from sparsefw.compression.score import NEEDS_DATA, SCORES, observe, readers_of
from sparsefw.compression.settings import REMOVED
from sparsefw.compression.structure.channels import Channels, Side, find_channels, outputs_of
from sparsefw.compression.structure.removal import removable_channels, removal_edits
from sparsefw.compression.structure.surgery import size, zero_filters
from sparsefw.geometry.select import smallest_k
from sparsefw.kinds import FILTERS, HEADS, NEURONS, Kind


@cuts(FILTERS.family, NEURONS.family, HEADS.family)
class ChannelStage(Stage):
    """Sets of channels with their scores; those with the smallest scores go first, equally many from every block."""

    def __init__(self, request: StageRequest) -> None:
        model = request.model
        settings = request.settings
        self.request = request
        self.selection = settings.selection
        self.sets, untouched = self.find_sets(model, request.example)
        super().__init__(model, request.allocation, settings.selection, untouched)
        observed = observe(model, request.example, request.calibration if request.score in NEEDS_DATA else None)
        self.scores = [SCORES[request.score](model, channels, observed) for channels in self.sets]
        self.units = [
            Unit(channels.name, scores, len(set(channels.blocks)), _width(model, channels))
            for channels, scores in zip(self.sets, self.scores, strict=True)
        ]

    @classmethod
    def of(cls, request: StageRequest) -> Stage:
        if request.score in NEEDS_DATA and request.calibration is None:
            raise ValueError(f"score={request.score!r} needs calibration=")
        if request.settings.form == REMOVED:
            return RemovedChannels(request)
        return MaskedHeads(request) if request.kind is HEADS else MaskedFilters(request)

    @abstractmethod
    def find_sets(self, model: nn.Module, example: Any) -> tuple[list[Channels], list[Untouched]]:
        """Return the sets that may lose channels, and the layers that may not."""

    def removed(self, counts: Sequence[int]) -> dict[Channels, list[int]]:
        """Return the channels that each set loses if it keeps this many."""
        return {
            channels: _smallest(channels, scores, channels.count - kept)
            for channels, scores, kept in zip(self.sets, self.scores, counts, strict=True)
        }

    def takes(self, channels: Channels) -> bool:
        """Return whether include and exclude choose every layer that writes these channels."""
        return all(self.selection.takes(site.layer) for site in channels.writers)


def _width(model: nn.Module, channels: Channels) -> int:
    """Return how many channels go at once: those of a head, or one."""
    blocks = [site.layer for site in channels.sites if site.side == Side.HEADS]
    return int(model.get_submodule(blocks[0]).head_dim) if blocks else 1  # type: ignore[arg-type]


class RemovedChannels(ChannelStage):
    """Channels removed with everything that belongs to them."""

    def find_sets(self, model: nn.Module, example: Any) -> tuple[list[Channels], list[Untouched]]:
        sets = []
        untouched = []
        excluded = []
        for channels in removable_channels(model, example):
            if not self._is_asked_for(channels):
                continue
            if channels.fixed is None and self.takes(channels):
                sets.append(channels)
            elif channels.fixed is None:
                excluded.append(Untouched.because(channels.name, because(Cause.EXCLUDED)))
            elif channels.writers:
                untouched.append(Untouched.because(channels.name, channels.fixed))
        return sets, untouched + excluded

    def _is_asked_for(self, channels: Channels) -> bool:
        """Filters are all channels but those that another kind is asked to remove; other kinds have their own channels."""
        kind = _kind_of_channels(self.request.model, channels)
        return kind not in self.request.others if self.request.kind is FILTERS else kind is self.request.kind

    def edits(self, counts: Sequence[int]) -> list[Edit]:
        return [*removal_edits(self.model, self.removed(counts))]


class MaskedFilters(ChannelStage):
    """Filters of every convolution (neurons of every linear layer) zeroed in place, layer by layer: the paper's protocol."""

    layer_word = "convolution"

    def find_sets(self, model: nn.Module, example: Any) -> tuple[list[Channels], list[Untouched]]:
        all_sets = find_channels(model, example)
        ends = _ends(all_sets)
        sets = []
        computed = []
        untouched = []
        for name, module in model.named_modules():
            if not isinstance(module, self.request.kind.layers) or not self.selection.takes(name):
                continue
            if not isinstance(module.weight, nn.Parameter):
                computed.append(Untouched.because(name, because(Cause.COMPUTED_WEIGHT)))
            elif name in ends:
                untouched.append(Untouched.because(name, ends[name]))
            else:
                count = size(model, name, Side.OUT)
                sites = (outputs_of(name, count), *readers_of(all_sets, name, count))
                sets.append(Channels(sites, (0,) * count))
        return sets, computed + untouched

    def edits(self, counts: Sequence[int]) -> list[Edit]:
        return [Zero(channels.name, tuple(indices)) for channels, indices in self.removed(counts).items()]

    def write(self, layer: nn.Module, edit: Zero | None, solution: Solution) -> Tensor:
        weight = super().write(layer, edit, solution)
        zero_filters(layer, edit.filters if edit is not None else ())  # also their bias
        return weight


class MaskedHeads(ChannelStage):
    """Heads that nothing reads: their columns of the output projection are 0."""

    layer_word = HEADS.looks_for

    def find_sets(self, model: nn.Module, example: Any) -> tuple[list[Channels], list[Untouched]]:
        heads = [c for c in find_channels(model, example) if _kind_of_channels(model, c) is HEADS]
        sets = [channels for channels in heads if not channels.fixed and self.takes(channels)]
        untouched = [Untouched.because(channels.name, channels.fixed) for channels in heads if channels.fixed]
        return sets, untouched

    def edits(self, counts: Sequence[int]) -> list[Edit]:
        return [Mute(channels.name, tuple(indices)) for channels, indices in self.removed(counts).items()]


def _smallest(channels: Channels, scores: Tensor, count: int) -> list[int]:
    """Return the `count` channels with the smallest scores, equally many from every block."""
    blocks = torch.as_tensor(channels.blocks)
    labels = blocks.unique().tolist()
    smallest: list[int] = []
    for block in labels:
        members = (blocks == block).nonzero().flatten()
        smallest += members[smallest_k(scores[members], count // len(labels))].tolist()
    return sorted(smallest)


def _ends(sets: Sequence[Channels]) -> dict[str, Reason]:
    """Map layers whose channels end in the model's output, or that no layer reads, to the reason."""
    ends: dict[str, Reason] = {}
    for channels in sets:
        reason = channels.fixed
        if reason is not None and (reason.cause is Cause.OUTPUT or not channels.readers):
            ends |= {site.layer: reason for site in channels.sites if site.side != Side.IN}
    return ends


def _kind_of_channels(model: nn.Module, channels: Channels) -> Kind:
    """Return the kind: heads are in attention blocks, neurons are written by linear layers only; all others are filters."""
    if any(site.side == Side.HEADS for site in channels.writers):
        return HEADS
    modules = [model.get_submodule(site.layer) for site in channels.writers]
    return NEURONS if modules and all(isinstance(module, NEURONS.layers) for module in modules) else FILTERS
