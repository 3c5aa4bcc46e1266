"""Weights: entries set to 0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn

from sparsefw.compression.allocate import Allocation, Global, Uniform, Unit
from sparsefw.compression.artifact.plan import Edit, Thin, Untouched
from sparsefw.compression.kinds.stage import COMPUTED, Job, Stage, cuts
from sparsefw.compression.settings import Selection
from sparsefw.compression.structure import masks
from sparsefw.compression.structure.layers import is_layer, weight_of
from sparsefw.kinds import PATTERN, WEIGHTS, Pattern


@cuts(WEIGHTS.family, PATTERN)
class SparseWeights(Stage):
    """Entries zeroed by magnitude: the smallest of all, or all but the n largest of every m."""

    by_ratio: ClassVar[tuple[type[Allocation], ...]] = (Uniform, Global)

    @classmethod
    def of(cls, job: Job) -> Stage:
        kind = job.kind
        pattern = (kind.n, kind.m) if isinstance(kind, Pattern) else None
        return cls(job.model, job.allocation, job.settings.selection, pattern)

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

    @property
    def has_one_size(self) -> bool:
        return self.pattern is not None

    def counts(self, level: float) -> list[int]:
        if self.pattern is not None:
            return [int(masks.n_m_mask(layer, *self.pattern).sum()) for layer in self.layers.values()]
        if level and self.units and isinstance(self.allocation, Global):
            # by raw magnitude, as the paper's: exactly floor(level * N) go
            return [int(mask.sum()) for mask in masks.global_masks(self.weights, level).values()]
        return super().counts(level)

    def edits(self, counts: Sequence[int]) -> list[Edit]:
        kept = zip(self.weights.items(), counts, strict=True)
        return [Thin(name, count, weight.numel(), self.pattern or ()) for (name, weight), count in kept]

    def remarks(self, edits: Sequence[Edit]) -> list[Untouched]:
        thin = [e for e in edits if isinstance(e, Thin) and e.nonzero < 0.01 * e.of]
        return [Untouched(e.layer, f"nearly empty: {e.nonzero} of {e.of} weights left", note=True) for e in thin]
