"""Rank: layers split in two by their leading singular vectors."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from sparsefw.compression.allocate import Allocation, Uniform, Unit
from sparsefw.compression.artifact.plan import Edit, Split, Truncate, Untouched
from sparsefw.compression.kinds.stage import Job, Stage, cuts
from sparsefw.compression.recovery.cut import Solution
from sparsefw.compression.recovery.refit import best_rank
from sparsefw.compression.settings import Selection
from sparsefw.compression.structure import factorisation
from sparsefw.compression.structure.layers import as_matrices, forward_order, is_layer, set_weight, shared_layers
from sparsefw.geometry.subspace import gram_values
from sparsefw.kinds import RANK


@cuts(RANK.family)
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
            return factorisation.obstacle(model, name)

        taken = [n for n, m in model.named_modules() if is_layer(m) and selection.takes(n)]
        reasons = {n: obstacle(n) for n in order if n in taken}
        reasons |= {n: "never called by itself" for n in taken if n not in reasons}
        super().__init__(model, allocation, selection, [Untouched(n, r) for n, r in reasons.items() if r])
        self.layers = {n: model.get_submodule(n) for n, reason in reasons.items() if not reason}
        self.units = [Unit(n, _spectrum(layer)) for n, layer in self.layers.items()]

    @classmethod
    def of(cls, job: Job) -> Stage:
        return cls(job.model, job.allocation, job.settings.selection, forward_order(job.model, job.example))

    def counts(self, level: float) -> list[int]:
        if level and isinstance(self.allocation, Uniform):  # floor, as the paper's: at least what was asked is removed
            return [factorisation.kept_rank(layer, level, self.selection.round_to) for layer in self.layers.values()]
        return super().counts(level)

    def edits(self, counts: Sequence[int]) -> list[Edit]:
        return [
            Split(name, rank) if factorisation.is_smaller(layer, rank) else Truncate(name, rank)
            for (name, layer), rank in zip(self.layers.items(), counts, strict=True)
            if rank < factorisation.full_rank(layer)
        ]

    def remarks(self, edits: Sequence[Edit]) -> list[Untouched]:
        return [Untouched(e.layer, "two layers would not be smaller") for e in edits if isinstance(e, Truncate)]

    def write(self, layer: nn.Module, edit: Split | Truncate | None, solution: Solution) -> Tensor:
        if edit is None:
            return super().write(layer, edit, solution)
        weight = best_rank(solution, edit.rank)
        if isinstance(layer, nn.Sequential):
            outer, inner = factorisation.factors(weight, edit.rank)
            set_weight(layer[0], inner)
            set_weight(layer[1], outer)
        else:
            set_weight(layer, weight)
        return weight


def _spectrum(layer: nn.Module) -> Tensor:
    """Singular values; of grouped layers the root mean square over the groups, since all groups keep the same rank."""
    values = gram_values(as_matrices(layer).detach())
    return values.square().mean(0).sqrt().cpu()
