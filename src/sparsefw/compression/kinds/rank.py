"""Rank: layers split in two along their leading singular vectors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

from torch import Tensor, nn

from sparsefw.compression.allocate import Allocation, Uniform, UnitSet
from sparsefw.compression.artifact.plan import Edit, Split, Truncate, Untouched
from sparsefw.compression.in_place.rank import RankCut
from sparsefw.compression.in_place.restriction import InPlaceCut
from sparsefw.compression.kinds.stage import Stage, StageRecord, StageRequest, registered_for
from sparsefw.compression.reasons import Cause, Reason, because
from sparsefw.compression.recovery.cut_network import Solution
from sparsefw.compression.recovery.refit import best_rank
from sparsefw.compression.settings import Selection
from sparsefw.compression.structure import factorisation
from sparsefw.compression.structure.layers import as_matrices, forward_order, is_layer, set_weight, shared_layers
from sparsefw.compression.structure.splitting import unsplittable_layers
from sparsefw.geometry.cuts import low_rank_factors
from sparsefw.geometry.subspace import gram_values
from sparsefw.kinds import RANK, Kind


@registered_for(RANK.family)
class LowRank(Stage):
    """Layers split in two.

    A layer that would not get smaller stays one, with the truncated weight. For a target, which only smaller layers approach, it
    keeps its weight instead.
    """

    cuts_without_waiting: ClassVar[bool] = False  # it decomposes matrices, unless all sizes share one pass

    def __init__(
        self,
        model: nn.Module,
        allocation: Allocation,
        selection: Selection,
        untouched: Sequence[Untouched],
        spectra: Mapping[str, Tensor],
        for_target: bool = False,
    ) -> None:
        """Make the stage.

        Args:
            model: The model to cut.
            allocation: How much each layer loses.
            selection: The layers chosen by name.
            untouched: The layers that cannot lose singular values.
            spectra: The singular values of every layer that can.
            for_target: Whether a layer that would not get smaller keeps its weight.
        """
        super().__init__(model, allocation, selection, untouched)
        self.layers = {name: model.get_submodule(name) for name in spectra}
        self.unit_sets = [UnitSet(name, values) for name, values in spectra.items()]
        self.for_target = for_target

    @classmethod
    def of(cls, request: StageRequest) -> Stage:
        model = request.model
        selection = request.settings.selection
        order = forward_order(model, request.example)  # the last one writes the output and keeps its rank
        shared = shared_layers(model)

        def obstacle(name: str) -> Reason | None:
            if name in shared:
                return because(Cause.SHARED_WEIGHT, other=shared[name])
            if name == order[-1]:
                return because(Cause.OUTPUT)
            return factorisation.obstacle(model, name)

        taken = [name for name, module in model.named_modules() if is_layer(module) and selection.takes(name)]
        reasons = {name: obstacle(name) for name in order if name in taken}
        reasons |= {name: because(Cause.NOT_CALLED_ITSELF) for name in taken if name not in reasons}
        splittable = [name for name, reason in reasons.items() if reason is None]
        reasons |= unsplittable_layers(model, request.example, splittable)
        untouched = [Untouched.because(name, reason) for name, reason in reasons.items() if reason is not None]
        spectra = {name: _spectrum(model.get_submodule(name)) for name, reason in reasons.items() if reason is None}
        return cls(model, request.allocation, selection, untouched, spectra, request.for_target)

    @classmethod
    def restored(cls, kind: Kind, model: nn.Module, record: StageRecord) -> Stage:
        return cls(model, record.allocation, record.selection, record.untouched, dict(record.units))

    def counts(self, level: float) -> list[int]:
        if level and isinstance(self.allocation, Uniform):  # floor, as in the paper: at least the ratio is removed
            layers = self.layers.values()
            ranks = [factorisation.kept_rank(layer, level, self.selection.round_to) for layer in layers]
        else:
            ranks = super().counts(level)
        return [self._worthwhile(layer, rank) for layer, rank in zip(self.layers.values(), ranks, strict=True)]

    def _worthwhile(self, layer: nn.Module, rank: int) -> int:
        """Return the rank, or for a target the full rank where two layers would not be smaller."""
        is_worthwhile = not self.for_target or factorisation.is_smaller(layer, rank)
        return rank if is_worthwhile else factorisation.full_rank(layer)

    def edits(self, counts: Sequence[int]) -> list[Edit]:
        return [
            Split(name, rank) if factorisation.is_smaller(layer, rank) else Truncate(name, rank)
            for (name, layer), rank in zip(self.layers.items(), counts, strict=True)
            if rank < factorisation.full_rank(layer)
        ]

    def in_place(self, model: nn.Module) -> InPlaceCut:
        return RankCut([model.get_submodule(name) for name in self.layers], self.counts)

    def notes(self, edits: Sequence[Edit]) -> list[Untouched]:
        split = {edit.layer for edit in edits if isinstance(edit, Split)}
        left = self.layers if self.for_target else [edit.layer for edit in edits if isinstance(edit, Truncate)]
        cause = Cause.WHOLE_IS_SMALLER if self.for_target else Cause.TWO_NOT_SMALLER
        return [
            Untouched.because(name, because(cause, least=_rounded_up(factorisation.least_ratio(self.layers[name]))))
            for name in left
            if name not in split
        ]

    def write_refit(self, layer: nn.Module, edit: Split | Truncate | None, solution: Solution) -> Tensor:
        if edit is None:
            return super().write_refit(layer, edit, solution)
        weight = best_rank(solution, edit.rank)
        if isinstance(layer, nn.Sequential):
            outer, inner = low_rank_factors(weight, edit.rank)
            set_weight(layer[0], inner)
            set_weight(layer[1], outer)
        else:
            set_weight(layer, weight)
        return weight


def _rounded_up(ratio: float) -> str:
    """Return the ratio with three digits, such that two layers are smaller above it."""
    return f"{math.ceil(1000 * ratio - 1e-9) / 1000:g}"


def _spectrum(layer: nn.Module) -> Tensor:
    """Return the singular values; of grouped layers their root mean square, because all groups keep the same rank."""
    values = gram_values(as_matrices(layer).detach())
    return values.square().mean(0).sqrt().cpu()
