"""Weights set to 0 in place: the smallest of all layers together."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sparsefw.compression.in_place.restriction import InPlaceCut, Mask, Restriction
from sparsefw.compression.structure.masks import share_of
from sparsefw.geometry.select import without_smallest_mask


class WeightCut(InPlaceCut):
    """The smallest of all entries are 0."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self._weights = weights
        self._sizes = [weight.numel() for weight in weights]

    def numbers(self, ratio: float) -> Tensor:
        return torch.tensor([share_of(ratio, sum(self._sizes))])

    def restriction(self, numbers: Tensor) -> Restriction:
        magnitudes = torch.cat([weight.detach().abs().flatten() for weight in self._weights])
        masks = without_smallest_mask(magnitudes, numbers).to(magnitudes.dtype).split(self._sizes)
        shaped = [mask.view_as(weight).to(weight.dtype) for weight, mask in zip(self._weights, masks, strict=True)]
        return Mask(self._weights, shaped)
