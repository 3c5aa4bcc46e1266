"""Filters, neurons and heads: channels removed from every layer at once, or zeroed in place (masked, the paper's)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from sparsefw.compression.allocate import Allocation, UnitSet
from sparsefw.compression.artifact.plan import Edit, Mute, Untouched, Zero
from sparsefw.compression.in_place.channels import ChannelCut
from sparsefw.compression.in_place.restriction import InPlaceCut
from sparsefw.compression.kinds.stage import Stage, StageRecord, StageRequest, registered_for
from sparsefw.compression.reasons import Cause, Reason, because
from sparsefw.compression.recovery.cut_network import Solution
from sparsefw.compression.score import NEEDS_DATA, ROW_SCORES, Observed, RowScores, observe, readers_of, scores_of
from sparsefw.compression.settings import REMOVED, Selection
from sparsefw.compression.structure.channels import Channels, Side, outputs_of
from sparsefw.compression.structure.counted_norms import norm_form
from sparsefw.compression.structure.layers import bare_tensor
from sparsefw.compression.structure.removal import removable_channels, removal_edits
from sparsefw.compression.structure.surgery import size, zero_filters
from sparsefw.compression.structure.trace import find_channels
from sparsefw.geometry.select import smallest_k_indices
from sparsefw.kinds import FILTERS, HEADS, NEURONS, Kind


@registered_for(FILTERS.family, NEURONS.family, HEADS.family)
class ChannelStage(Stage):
    """Sets of channels with their scores; those with the smallest scores go first, equally many from every group.

    request, observed   how the channels were ranked, to rank them anew in place; None for a stage that was read from a file
    """

    def __init__(
        self,
        model: nn.Module,
        allocation: Allocation,
        selection: Selection,
        untouched: Sequence[Untouched],
        sets: Sequence[Channels],
        scores: Sequence[Tensor],
    ) -> None:
        super().__init__(model, allocation, selection, untouched)
        self.request: StageRequest | None = None
        self.observed: Observed | None = None
        self.sets = list(sets)
        self.scores = list(scores)
        self.unit_sets = [
            UnitSet(channels.name, magnitudes, len(set(channels.groups)), _width(channels))
            for channels, magnitudes in zip(sets, scores, strict=True)
        ]

    @classmethod
    def of(cls, request: StageRequest) -> Stage:
        if request.score in NEEDS_DATA and request.calibration is None:
            raise ValueError(f"score={request.score!r} needs calibration=")
        model = request.model
        stage_class = _stage_class(request.kind, request.settings.form)
        sets, untouched = stage_class.find_sets(request)
        observed = observe(model, request.example, request.calibration if request.score in NEEDS_DATA else None)
        scores = scores_of(request.score, model, sets, observed)
        stage = stage_class(model, request.allocation, request.settings.selection, untouched, sets, scores)
        stage.request = request
        stage.observed = observed
        return stage

    @classmethod
    def restored(cls, kind: Kind, model: nn.Module, record: StageRecord) -> Stage:
        scores = [magnitudes for _, magnitudes in record.units]
        stage_class = _stage_class(kind, record.form)
        return stage_class(model, record.allocation, record.selection, record.untouched, record.channels, scores)

    def record(self, form: str) -> StageRecord:
        return replace(super().record(form), channels=tuple(self.sets))

    @classmethod
    @abstractmethod
    def find_sets(cls, request: StageRequest) -> tuple[list[Channels], list[Untouched]]:
        """Return the sets that may lose channels, and the layers that may not."""

    def removed(self, counts: Sequence[int]) -> dict[Channels, list[int]]:
        """Return the channels that each set loses if it keeps this many."""
        return {
            channels: _smallest(channels, scores, channels.count - kept)
            for channels, scores, kept in zip(self.sets, self.scores, counts, strict=True)
        }

    def in_place(self, model: nn.Module) -> InPlaceCut:
        assert self.request is not None
        assert self.observed is not None
        scores = RowScores(model, self.sets, ROW_SCORES[self.request.score], self.observed)
        norms = self.observed.batch_norm if self.request.settings.form == REMOVED else None
        return ChannelCut(model, self.sets, scores, self.counts, norms)


def _stage_class(kind: Kind, form: str) -> type[ChannelStage]:
    if form == REMOVED:
        return RemovedChannels
    return MaskedHeads if kind is HEADS else MaskedFilters


def _is_taken(selection: Selection, channels: Channels) -> bool:
    """Return whether include and exclude choose every layer that writes these channels."""
    return all(selection.takes(site.layer) for site in channels.writers)


def _width(channels: Channels) -> int:
    """Return the number of channels in a unit: those of a head, or one."""
    return max((len(slots) for site in channels.readers for slots in site.slots), default=1) if channels.is_heads else 1


class RemovedChannels(ChannelStage):
    """Channels removed from all of their sites."""

    @classmethod
    def find_sets(cls, request: StageRequest) -> tuple[list[Channels], list[Untouched]]:
        sets = []
        untouched = []
        excluded = []
        for channels in removable_channels(request.model, request.example):
            if not _is_asked_for(request, channels):
                continue
            if channels.obstacle is None and _is_taken(request.settings.selection, channels):
                sets.append(channels)
            elif channels.obstacle is None:
                excluded.append(Untouched.because(channels.name, because(Cause.EXCLUDED)))
            else:
                tables = [
                    site.layer
                    for site in channels.sites
                    if site.side == Side.EACH and _is_embedding(request.model, site.layer)
                ]
                names = [*([channels.name] if channels.writers else []), *tables]
                untouched += [Untouched.because(name, channels.obstacle) for name in names]
        return sets, untouched + excluded

    def edits(self, counts: Sequence[int]) -> list[Edit]:
        return [*removal_edits(self.model, self.removed(counts))]

    def notes(self, edits: Sequence[Edit]) -> list[Untouched]:
        cut = {edit.layer for edit in edits}
        sets = [channels for channels in self.sets if channels.leaves_constant and channels.sites[0].layer in cut]
        return [Untouched.because(channels.name, because(Cause.LEAVES_CONSTANT)) for channels in sets]


class MaskedFilters(ChannelStage):
    """Filters of every convolution (neurons of every linear layer) zeroed in place, layer by layer: the paper's protocol."""

    layer_word = "convolution"

    @classmethod
    def find_sets(cls, request: StageRequest) -> tuple[list[Channels], list[Untouched]]:
        model = request.model
        all_sets = find_channels(model, request.example)
        ends = _ends(all_sets)
        sets = []
        computed = []
        untouched = []
        for name, module in model.named_modules():
            if not isinstance(module, request.kind.layers) or not request.settings.selection.takes(name):
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

    def write_refit(self, layer: nn.Module, edit: Zero | None, solution: Solution) -> Tensor:
        weight = super().write_refit(layer, edit, solution)
        zero_filters(layer, edit.filters if edit is not None else ())  # also their bias
        return weight


class MaskedHeads(ChannelStage):
    """Heads that nothing reads: what the layers behind the attention read from them is 0."""

    @classmethod
    def find_sets(cls, request: StageRequest) -> tuple[list[Channels], list[Untouched]]:
        heads = [
            c for c in find_channels(request.model, request.example) if kind_of_channels(request.model, c) is HEADS
        ]
        selection = request.settings.selection
        sets = [channels for channels in heads if channels.obstacle is None and _is_taken(selection, channels)]
        untouched = [Untouched.because(c.name, c.obstacle) for c in heads if c.obstacle is not None]
        return sets, untouched

    def edits(self, counts: Sequence[int]) -> list[Edit]:
        return [
            Mute(site.layer, tuple(sorted(slot for head in heads for slot in site.slots[head])))
            for channels, heads in self.removed(counts).items()
            for site in channels.readers
        ]


def _is_asked_for(request: StageRequest, channels: Channels) -> bool:
    """Filters are all channels but those that another kind is asked to remove; other kinds have their own channels."""
    kind = kind_of_channels(request.model, channels)
    return kind not in request.others if request.kind is FILTERS else kind is request.kind


def _is_embedding(model: nn.Module, name: str) -> bool:
    """Return whether this is the name of an embedding, which writes channels that no layer computes."""
    return bare_tensor(model, name) is None and isinstance(model.get_submodule(name), nn.Embedding)


def _smallest(channels: Channels, scores: Tensor, count: int) -> list[int]:
    """Return the `count` channels with the smallest scores, equally many from every group."""
    group_of_channel = torch.as_tensor(channels.groups)
    groups = group_of_channel.unique().tolist()
    smallest: list[int] = []
    for group in groups:
        members = (group_of_channel == group).nonzero().flatten()
        smallest += members[smallest_k_indices(scores[members], count // len(groups))].tolist()
    return sorted(smallest)


def _ends(sets: Sequence[Channels]) -> dict[str, Reason]:
    """Map layers whose channels end in the model's output, or that no layer reads, to the reason."""
    ends: dict[str, Reason] = {}
    for channels in sets:
        obstacle = channels.obstacle
        if obstacle is not None and (obstacle.cause is Cause.OUTPUT or not channels.readers):
            ends |= {site.layer: obstacle for site in channels.sites if site.side != Side.IN}
    return ends


def kind_of_channels(model: nn.Module, channels: Channels) -> Kind:
    """Return the kind: heads are in attention modules, neurons are written by linear layers only; all others are filters.

    Channels that a norm over channels sees, such as a layer norm, are the width of a residual stream: filters.
    """
    if channels.is_heads:
        return HEADS
    modules = [model.get_submodule(site.layer) for site in channels.writers]
    is_stream = any(
        site.side == Side.EACH
        and bare_tensor(model, site.layer) is None
        and norm_form(model.get_submodule(site.layer)) is not None
        for site in channels.sites
    )
    linear = bool(modules) and all(isinstance(module, NEURONS.layers) for module in modules)
    return NEURONS if linear and not is_stream else FILTERS
