"""ABFP: SGD with penalties that move energy from the weak filters of a layer to its strong ones.

    gradient += 2 strength lam_j W_j   for weak filters,   gradient += 2 t lam_j W_j   for strong filters

Ding, Ding, Han, Tang: Auto-Balanced Filter Pruning for Efficient Convolutional Neural Networks, AAAI 2018.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from sparsefw.geometry.gauges import divide
from sparsefw.geometry.select import top_k_mask
from sparsefw.kinds import FILTERS, Kind
from sparsefw.methods.base import Method, register
from sparsefw.methods.weight_stacks import weight_stacks

_LARGEST_LAM = 10.0  # the logarithm of a filter that is 0 has no bound


@register
class ABFP(Method):
    """SGD on loss + strength * S_P + t * S_R, with S = sum of lam_j ||W_j||^2 over the weak filters P and the strong ones R.

    In each layer, R is the fraction k of the filters with the largest M_j = ||W_j||_1, and c the smallest M_j in R. Then

        lam_j = 1 + log(c / M_j) > 0 for weak filters, -1 - log(M_j / c) < 0 for strong ones,  t = -strength * S_P / S_R:

    the two terms cancel. lam and t are recomputed in every step (in the paper, once, from a trained network) and are constants
    in the gradient.
    """

    title: ClassVar[str] = "ABFP"
    paper: ClassVar[str] = "Ding, Ding, Han, Tang: AAAI 2018"
    removes: ClassVar[Kind | None] = FILTERS

    name: Literal["abfp"] = "abfp"
    k: float = Field(default=0.3, gt=0, le=1)
    strength: float = Field(default=1e-3, ge=0, allow_inf_nan=False)

    @torch.no_grad()
    def adjust(self, model: nn.Module) -> None:
        for stack in weight_stacks(model, FILTERS) if self.strength else ():
            weights = stack.weights()
            stack.add_to_gradients(2 * self.factors(weights).unsqueeze(-1) * weights)

    def factors(self, weights: Tensor) -> Tensor:
        """Return the factor (b, n) of each filter's squared norm in the penalty, whose sum is 0 in every layer."""
        scores = weights.abs().sum(-1)
        strong = top_k_mask(scores, math.ceil(self.k * scores.shape[-1] - 1e-9))
        weakest_strong = torch.where(strong, scores, torch.inf).amin(-1, keepdim=True)
        ratio = scores / weakest_strong  # at least 1 for strong filters; NaN where all filters are 0
        lam = (1 + ratio.log().abs()).nan_to_num(nan=1.0, posinf=_LARGEST_LAM).clamp(max=_LARGEST_LAM)
        energy = lam * weights.square().sum(-1)
        weak_energy = torch.where(strong, 0, energy).sum(-1, keepdim=True)
        strong_energy = torch.where(strong, energy, 0).sum(-1, keepdim=True)
        return self.strength * lam * torch.where(strong, -divide(weak_energy, strong_energy), 1.0)
