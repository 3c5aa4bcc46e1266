"""Rank lowered in place: weights and gradients projected onto the leading singular vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from sparsefw.compression.in_place.restriction import InPlaceCut, Restriction
from sparsefw.compression.structure.layers import as_matrices, from_matrices, weight_of
from sparsefw.geometry.subspace import gram_vectors


class RankCut(InPlaceCut):
    """W becomes P W, the best approximation of its rank, and gradients P G; P projects on the leading left vectors of W.

    Of tall matrices it is W P and G P, with the right vectors. Every cut decomposes every layer, which is slow.
    """

    capturable: ClassVar[bool] = False

    def __init__(self, layers: Mapping[str, nn.Module], ranks: Callable[[float], list[int]]) -> None:
        self._layers = list(layers.values())
        self._ranks = ranks

    def numbers(self, ratio: float) -> Tensor:
        return torch.tensor(self._ranks(ratio))

    def restrictions(self, numbers: Tensor) -> list[Restriction]:
        return [_restriction(layer, rank) for layer, rank in zip(self._layers, numbers, strict=True)]


def _restriction(layer: nn.Module, rank: Tensor) -> Restriction:
    weight = weight_of(layer)
    W = as_matrices(layer).detach()
    is_wide = W.shape[1] <= W.shape[2]
    vectors = gram_vectors(W.double() if is_wide else W.double().mT)[0]
    leading = vectors * (torch.arange(vectors.shape[-1], device=W.device) < rank)
    projection = (leading @ leading.mT).to(W.dtype)

    def project(x: Tensor) -> Tensor:
        matrices = as_matrices(layer, x)
        return from_matrices(layer, projection @ matrices if is_wide else matrices @ projection, weight.shape)

    return Restriction(weight, project(weight.detach()), project)
