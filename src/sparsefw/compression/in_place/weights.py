"""Weights set to 0 in place: the smallest of all layers together."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sparsefw.compression.in_place.restriction import InPlaceCut, Restriction, masked
from sparsefw.compression.structure.masks import share_of
from sparsefw.geometry.select import without_smallest_mask


class WeightCut(InPlaceCut):
    """The smallest of all entries are 0."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self._weights = weights
        self._sizes = [weight.numel() for weight in weights]

    def numbers(self, ratio: float) -> Tensor:
        return torch.tensor([share_of(ratio, sum(self._sizes))])

    def restrictions(self, numbers: Tensor) -> list[Restriction]:
        magnitudes = torch.cat([weight.detach().abs().flatten() for weight in self._weights])
        masks = without_smallest_mask(magnitudes, numbers).split(self._sizes)
        shaped = [mask.view_as(w).to(w.dtype) for w, mask in zip(self._weights, masks, strict=True)]
        return masked(self._weights, shaped)
