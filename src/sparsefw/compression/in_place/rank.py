"""Rank lowered in place: weights and gradients projected onto the leading singular vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from sparsefw.compression.in_place.restriction import InPlaceCut, Restriction
from sparsefw.compression.structure.layers import as_matrices, from_matrices, weight_of
from sparsefw.geometry.subspace import gram_vectors


class RankCut(InPlaceCut):
    """W becomes P W, the best approximation of its rank, and gradients P G; P projects on the leading left vectors of W.

    Of tall matrices it is W P and G P, with the right vectors. Every cut decomposes every layer, which is slow.
    """

    def __init__(self, layers: Mapping[str, nn.Module], ranks: Callable[[float], list[int]]) -> None:
        self._layers = list(layers.values())
        self._ranks = ranks

    def numbers(self, ratio: float) -> Tensor:
        return torch.tensor(self._ranks(ratio))

    def restriction(self, numbers: Tensor) -> Restriction:
        return _Projection(self._layers, numbers)


class _Projection(Restriction):
    """Weights and gradients times the projections onto the leading singular vectors of the weights."""

    def __init__(self, layers: Sequence[nn.Module], ranks: Tensor) -> None:
        self._projections = [_projection(layer, rank) for layer, rank in zip(layers, ranks, strict=True)]
        weights = [weight_of(layer) for layer in layers]
        values = [project(w.detach()) for w, project in zip(weights, self._projections, strict=True)]
        super().__init__(weights, values)

    def restrict_gradients(self) -> None:
        for weight, project in zip(self.tensors, self._projections, strict=True):
            if weight.grad is not None:
                weight.grad = project(weight.grad)


def _projection(layer: nn.Module, rank: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the projection of tensors like the layer's weight onto its `rank` leading singular vectors."""
    weight = weight_of(layer)
    W = as_matrices(layer).detach()
    is_wide = W.shape[1] <= W.shape[2]
    vectors = gram_vectors(W.double() if is_wide else W.double().mT)[0]
    leading = vectors * (torch.arange(vectors.shape[-1], device=W.device) < rank)
    projection = (leading @ leading.mT).to(W.dtype)

    def project(x: Tensor) -> Tensor:
        matrices = as_matrices(layer, x)
        return from_matrices(layer, projection @ matrices if is_wide else matrices @ projection, weight.shape)

    return project
