"""TRP: the nuclear norm's subgradient, and every epoch ends at a low rank.

Xu, Li, Zhang, Wen, Wang, Qi, Chen, Lin, Xiong: TRP: Trained Rank Pruning for Efficient Deep Neural Networks, IJCAI 2020.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from sparsefw.geometry.cuts import direction
from sparsefw.geometry.views import ExactSVD, Spectrum
from sparsefw.kinds import RANK
from sparsefw.methods.base import register
from sparsefw.methods.layers import layers_of
from sparsefw.methods.spectral import Spectral
from sparsefw.optim import SFW


@register
class TRP(Spectral):
    """SGD with strength * U_t V_t^T added to the gradient; after every epoch but the last W <- U_t S_t V_t^T.

    t is the smallest rank at which at most the fraction `threshold` of sum_i s_i^2 is lost. (Published with a cut after every few
    steps; arXiv:2205.11921 cuts after epochs.) Without svd=True, U V^T of all directions is added to the gradient: between
    cuts the others are small, and it is the nuclear norm's own subgradient.
    """

    title: ClassVar[str] = "TRP"
    paper: ClassVar[str] = "Xu et al.: IJCAI 2020, arXiv:2004.14566"
    forms: ClassVar[Mapping[str, Mapping[str, Any]]] = {"trp": {}, "trp-svd": {"svd": True}}
    averages: ClassVar[bool] = False  # the mean of matrices of low rank has a higher one

    name: Literal["trp"] = "trp"
    strength: float = Field(default=1e-3, ge=0, allow_inf_nan=False)
    threshold: float = Field(default=0.05, ge=0, lt=1)

    @torch.no_grad()
    def adjust(self, model: nn.Module) -> None:
        for layers in layers_of(model, RANK) if self.strength else ():
            weights = layers.weights()
            found = self._leading(weights, value=1.0) if self.svd else direction(self.view, weights)
            layers.add_to_gradients(self.strength * found)

    @torch.no_grad()
    def after_epoch(self, model: nn.Module, optimizer: SFW, epoch: int, epochs: int) -> None:
        for layers in layers_of(model, RANK) if epoch < epochs else ():
            layers.write(self._leading(layers.weights()))

    def _leading(self, weights: Tensor, value: float | None = None) -> Tensor:
        """argmin of the rank over ||Y - W||^2 <= threshold ||W||^2: the leading singular values, or as many of this value."""
        s, lift = Spectrum(ExactSVD()).split(weights)
        energy = s.double().square()
        lost_from = energy.flip(-1).cumsum(-1).flip(-1)  # [i]: what is lost if s_i and all smaller ones go
        kept = lost_from > self.threshold * lost_from[..., :1]
        return lift(torch.where(kept, s if value is None else value, 0))
