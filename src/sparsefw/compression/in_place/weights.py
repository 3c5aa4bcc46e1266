"""Weights set to 0 in place: the smallest of all layers together."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sparsefw.compression.in_place.restriction import InPlaceCut, Mask, Restriction
from sparsefw.compression.structure.layers import weight_of
from sparsefw.compression.structure.masks import share_of
from sparsefw.geometry.select import without_smallest_mask


class WeightCut(InPlaceCut):
    """The smallest of all entries are 0."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        self._layers = layers
        self._sizes = [weight_of(layer).numel() for layer in layers]

    def numbers(self, ratio: float) -> Tensor:
        return torch.tensor([share_of(ratio, sum(self._sizes))])

    def restriction(self, numbers: Tensor) -> Restriction:
        weights = [weight_of(layer) for layer in self._layers]
        magnitudes = torch.cat([weight.detach().abs().flatten() for weight in weights])
        masks = without_smallest_mask(magnitudes, numbers).to(magnitudes.dtype).split(self._sizes)
        shaped = [mask.view_as(weight).to(weight.dtype) for weight, mask in zip(weights, masks, strict=True)]
        return Mask(weights, shaped)
