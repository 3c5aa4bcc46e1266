"""Weights: entries set to 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from torch import Tensor, nn

from sparsefw.compression.allocate import Allocation, Global, Uniform, UnitSet
from sparsefw.compression.artifact.plan import Edit, Thin, Untouched
from sparsefw.compression.in_place.restriction import InPlaceCut
from sparsefw.compression.in_place.weights import WeightCut
from sparsefw.compression.kinds.stage import Stage, StageRecord, StageRequest, registered_for
from sparsefw.compression.reasons import Cause, because
from sparsefw.compression.settings import Selection
from sparsefw.compression.structure import masks
from sparsefw.compression.structure.layers import is_layer, weight_of
from sparsefw.kinds import PATTERN, WEIGHTS, Kind, Pattern


@registered_for(WEIGHTS.family, PATTERN)
class SparseWeights(Stage):
    """Entries zeroed by magnitude: the smallest of all, or all but the n largest of every m."""

    by_ratio: ClassVar[tuple[type[Allocation], ...]] = (Uniform, Global)

    @classmethod
    def of(cls, request: StageRequest) -> Stage:
        return cls(request.model, request.allocation, request.settings.selection, _pattern(request.kind))

    @classmethod
    def restored(cls, kind: Kind, model: nn.Module, record: StageRecord) -> Stage:
        return cls(model, record.allocation, record.selection, _pattern(kind))

    def record(self, form: str) -> StageRecord:
        """The weights give the magnitudes again."""
        return replace(super().record(form), units=())

    def __init__(
        self, model: nn.Module, allocation: Allocation, selection: Selection, pattern: tuple[int, int] | None = None
    ) -> None:
        layers = {name: module for name, module in model.named_modules() if is_layer(module)}
        taken = {name: layer for name, layer in layers.items() if selection.takes(name)}
        excluded = {layer.weight: name for name, layer in layers.items() if name not in taken}
        reasons = {
            name: because(Cause.SHARED_WITH_EXCLUDED, other=excluded[layer.weight])
            for name, layer in taken.items()
            if layer.weight in excluded
        }
        reasons |= {
            name: because(Cause.COMPUTED_WEIGHT)
            for name, layer in taken.items()
            if not isinstance(layer.weight, nn.Parameter)
        }
        untouched = [Untouched.because(name, reason) for name, reason in reasons.items()]
        super().__init__(model, allocation, selection, untouched)
        self.pattern = pattern
        self.layers = _one_per_weight({name: layer for name, layer in taken.items() if name not in reasons})
        self.weights: dict[str, Tensor] = {name: weight_of(layer) for name, layer in self.layers.items()}
        self.unit_sets = [UnitSet(name, _magnitudes(weight)) for name, weight in self.weights.items()]

    @property
    def has_one_size(self) -> bool:
        return self.pattern is not None

    def counts(self, level: float) -> list[int]:
        if self.pattern is not None:
            return [int(masks.n_m_mask(layer, *self.pattern).sum()) for layer in self.layers.values()]
        if level and self.unit_sets and isinstance(self.allocation, Global):
            # By raw magnitude, as in the paper: exactly floor(level * N) are removed.
            return [int(mask.sum()) for mask in masks.global_masks(self.weights, level).values()]
        return super().counts(level)

    def edits(self, counts: Sequence[int]) -> list[Edit]:
        kept = zip(self.weights.items(), counts, strict=True)
        return [Thin(name, count, weight.numel(), self.pattern or ()) for (name, weight), count in kept]

    def in_place(self, model: nn.Module) -> InPlaceCut:
        if self.pattern is not None:
            raise ValueError(f"{self.pattern[0]}:{self.pattern[1]} has one size: there is nothing to choose in place")
        return WeightCut([model.get_submodule(name) for name in self.layers])

    def notes(self, edits: Sequence[Edit]) -> list[Untouched]:
        return [
            Untouched.because(edit.layer, because(Cause.NEARLY_EMPTY, nonzero=edit.nonzero, count=edit.of))
            for edit in edits
            if isinstance(edit, Thin) and edit.nonzero < 0.01 * edit.of
        ]


def _pattern(kind: Kind) -> tuple[int, int] | None:
    return (kind.n, kind.m) if isinstance(kind, Pattern) else None


def _one_per_weight(layers: dict[str, nn.Module]) -> dict[str, nn.Module]:
    """Return the layers without those whose weight an earlier one already has."""
    owners: dict[nn.Parameter, str] = {}
    for name, layer in layers.items():
        owners.setdefault(weight_of(layer), name)
    return {name: layer for name, layer in layers.items() if owners[weight_of(layer)] == name}


def _magnitudes(weight: Tensor) -> Tensor:
    return weight.detach().abs().flatten().float().cpu()
