"""ABFP: energy is moved from the weak filters to the strong ones.

Ding, Ding, Han, Tang: Auto-Balanced Filter Pruning for Efficient Convolutional Neural Networks, AAAI 2018.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from sparsefw.geometry.gauges import divide
from sparsefw.kinds import FILTERS, Kind
from sparsefw.methods.base import Method, register
from sparsefw.methods.layers import layers_of

_LARGEST = 10.0  # of the factors: the logarithm of a filter that is 0 has no bound


@register
class ABFP(Method):
    """SGD on loss + strength * S_P + t * S_R, with S = sum of lam_j ||W_j||^2 over the weak filters P and the strong ones R.

    In each layer R are the fraction k of the filters with the largest M_j = ||W_j||_1, c the smallest M_j among them, and

        lam_j = 1 + log(c / M_j) > 0 for weak filters, -1 - log(M_j / c) < 0 for strong ones,  t = -strength * S_P / S_R:

    the two terms cancel. lam and t are computed anew in every step (the paper's are those of a trained network that it starts
    from) and are constants in the gradient, 2 strength lam_j W_j for weak and 2 t lam_j W_j for strong filters.
    """

    title: ClassVar[str] = "ABFP"
    paper: ClassVar[str] = "Ding, Ding, Han, Tang: AAAI 2018"
    removes: ClassVar[Kind | None] = FILTERS

    name: Literal["abfp"] = "abfp"
    k: float = Field(default=0.3, gt=0, le=1)
    strength: float = Field(default=1e-3, ge=0, allow_inf_nan=False)

    @torch.no_grad()
    def adjust(self, model: nn.Module) -> None:
        for layers in layers_of(model, FILTERS) if self.strength else ():
            weights = layers.weights()
            layers.add_to_gradients(2 * self.factors(weights).unsqueeze(-1) * weights)

    def factors(self, weights: Tensor) -> Tensor:
        """What each filter's squared norm is weighted with in the penalty (b, n): their weighted sum is 0 in every layer."""
        scores = weights.abs().sum(-1)
        strongest = scores.topk(math.ceil(self.k * scores.shape[-1] - 1e-9), dim=-1)
        strong = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, strongest.indices, True)
        ratio = scores / strongest.values[..., -1:]  # at least 1 for strong filters; NaN where all are 0
        lam = (1 + ratio.log().abs()).nan_to_num(nan=1.0, posinf=_LARGEST).clamp(max=_LARGEST)
        energy = lam * weights.square().sum(-1)
        weak_energy = torch.where(strong, 0, energy).sum(-1, keepdim=True)
        strong_energy = torch.where(strong, energy, 0).sum(-1, keepdim=True)
        return self.strength * lam * torch.where(strong, -divide(weak_energy, strong_energy), 1.0)
