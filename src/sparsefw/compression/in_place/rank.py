"""Rank lowered in place: weights and gradients projected onto the leading singular vectors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sparsefw.compression.in_place.attention import gradient_of, set_gradient
from sparsefw.compression.in_place.restriction import InPlaceCut, Restriction
from sparsefw.compression.in_place.slices import InSlices
from sparsefw.compression.structure.layers import as_matrices, from_matrices, weight_of
from sparsefw.geometry.eigenbasis import turned
from sparsefw.geometry.subspace import gram_vectors
from sparsefw.layer_types import CONVOLUTIONS


class RankCut(InPlaceCut):
    """W becomes P W, the best approximation of its rank, and gradients P G; P projects on the leading left vectors of W.

    Where inputs are fewer, and a layer has one weight for each, it is W P and G P, with the right vectors. Every restriction
    decomposes every layer, which is slow; several sizes in one pass follow the decomposition instead.
    """

    def __init__(self, layers: Sequence[nn.Module], ranks: Callable[[float], list[int]]) -> None:
        self.layers = layers
        self._ranks = ranks

    def numbers(self, ratio: float) -> Tensor:
        return torch.tensor(self._ranks(ratio))

    def restriction(self, numbers: Tensor) -> Restriction:
        return _Projection(self.layers, numbers)

    def in_slices(self, model: nn.Module) -> InSlices:
        return _RankSlices(self.layers)


class _Projection(Restriction):
    """Weights and gradients times the projections onto the leading singular vectors of the weights."""

    def __init__(self, layers: Sequence[nn.Module], ranks: Tensor) -> None:
        self._projections = [_projection(layer, rank) for layer, rank in zip(layers, ranks, strict=True)]
        weights = [weight_of(layer) for layer in layers]
        values = [project(w.detach()) for w, project in zip(weights, self._projections, strict=True)]
        super().__init__(weights, values)

    def restrict_gradients(self) -> None:
        for weight, project in zip(self.tensors, self._projections, strict=True):
            gradient = gradient_of(weight)
            if gradient is not None:
                set_gradient(weight, project(gradient))


class _RankSlices(InSlices):
    """Outputs times P, which is what P W would write, or inputs times P, which is what W P would read.

    The eigenvectors of all Gram matrices are computed once, and turned with the weights from block to block.
    """

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        self.modules = list(layers)
        stacks: dict[int, list[int]] = defaultdict(list)  # matrices of one size are turned together
        for i, layer in enumerate(layers):
            stacks[_rows(layer).shape[1]].append(i)
        self._stacks = list(stacks.values())
        self.followed = [
            torch.cat([gram_vectors(_rows(layers[i]))[0] for i in stack]).to(_rows(layers[stack[0]]).dtype)
            for stack in self._stacks
        ]

    def attributes(self, numbers: Tensor, slice_of_part: Tensor) -> Mapping[nn.Module, dict[str, Any]]:
        own: dict[nn.Module, dict[str, Any]] = {}
        with torch.no_grad(), torch.autocast(numbers.device.type, enabled=False):
            for stack, basis in zip(self._stacks, self.followed, strict=True):
                layers = [self.modules[i] for i in stack]
                groups = [len(_rows(layer)) for layer in layers]
                vectors, squares = turned(basis, torch.cat([_rows(layer) @ _rows(layer).mT for layer in layers]))
                basis.copy_(vectors)
                place = squares.argsort(dim=-1, descending=True).argsort(dim=-1)
                ranks = torch.cat(
                    [numbers[:, i : i + 1].expand(-1, count) for i, count in zip(stack, groups, strict=True)], 1
                )
                leading = basis * (place < ranks.unsqueeze(-1)).unsqueeze(-2)  # (slices, matrices, n, n)
                for layer, projections in zip(layers, (leading @ basis.mT).split(groups, 1), strict=True):
                    own[layer] = {
                        "_slice_projections": projections.to(weight_of(layer).dtype),
                        "_slice_of_inputs": _reads_projected(layer),
                        "_slice_by_weight": type(layer) in (*CONVOLUTIONS, nn.Linear),  # not a forward of one's own
                    }
        return own


def _rows(layer: nn.Module) -> Tensor:
    """Return the weight as matrices (groups, n, m), in at least float32, whose left singular vectors are projected on."""
    W = as_matrices(layer).detach()
    W = W.mT if _reads_projected(layer) else W
    return W.to(torch.promote_types(W.dtype, torch.float32))


def _reads_projected(layer: nn.Module) -> bool:
    """Return whether the inputs of a layer are projected: they are fewer than the outputs, and each has one weight for each."""
    is_pointwise = isinstance(layer, nn.Linear) or (
        isinstance(layer, CONVOLUTIONS) and all(length == 1 for length in layer.kernel_size)
    )
    W = as_matrices(layer)
    return is_pointwise and W.shape[1] > W.shape[2]


def _projection(layer: nn.Module, rank: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the projection of tensors like the layer's weight onto its `rank` leading singular vectors."""
    weight = weight_of(layer)
    W = _rows(layer)
    vectors = gram_vectors(W)[0]
    leading = vectors * (torch.arange(vectors.shape[-1], device=W.device) < rank)
    projection = (leading @ leading.mT).to(weight.dtype)

    def project(x: Tensor) -> Tensor:
        matrices = as_matrices(layer, x)
        projected = matrices @ projection if _reads_projected(layer) else projection @ matrices
        return from_matrices(layer, projected, weight.shape)

    return project
