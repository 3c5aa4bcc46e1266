"""TRP: SGD with a nuclear-norm penalty, and after every epoch a hard cut of the singular values: W = U S V^T.

    gradient += strength * U_t V_t^T        in every step
    W <- U_t S_t V_t^T                      after every epoch but the last

Xu, Li, Zhang, Wen, Wang, Qi, Chen, Lin, Xiong: TRP: Trained Rank Pruning for Efficient Deep Neural Networks, IJCAI 2020.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from sparsefw.geometry.cuts import direction, energy_cut, energy_cut_direction
from sparsefw.kinds import RANK
from sparsefw.methods.base import register
from sparsefw.methods.spectral import Spectral
from sparsefw.methods.weight_stacks import weight_stacks
from sparsefw.optim import SFW


@register
class TRP(Spectral):
    """SGD with strength * U_t V_t^T added to the gradient; after every epoch but the last W <- U_t S_t V_t^T.

    t is the smallest rank that loses at most the fraction `threshold` of sum_i s_i^2. (Published with a cut after every few
    steps; arXiv:2205.11921 cuts after epochs.) Without svd=True, U V^T of all directions is added to the gradient: the
    directions beyond t are small between cuts, and U V^T is a subgradient of the nuclear norm itself.
    """

    title: ClassVar[str] = "TRP"
    paper: ClassVar[str] = "Xu et al.: IJCAI 2020, arXiv:2004.14566"
    forms: ClassVar[Mapping[str, Mapping[str, Any]]] = {"trp": {}, "trp-svd": {"svd": True}}
    allows_averaging: ClassVar[bool] = False  # the mean of matrices of low rank has a higher rank

    name: Literal["trp"] = "trp"
    strength: float = Field(default=1e-3, ge=0, allow_inf_nan=False)
    threshold: float = Field(default=0.05, ge=0, lt=1)

    @torch.no_grad()
    def adjust(self, model: nn.Module) -> None:
        for stack in weight_stacks(model, RANK) if self.strength else ():
            stack.add_to_gradients(self.strength * self._subgradient(stack.weights()))

    @torch.no_grad()
    def after_epoch(self, model: nn.Module, optimizer: SFW, epoch: int, epochs: int) -> None:
        for stack in weight_stacks(model, RANK) if epoch < epochs else ():
            stack.write(energy_cut(self.view, stack.weights(), self.threshold))

    def _subgradient(self, weights: Tensor) -> Tensor:
        if self.svd:
            return energy_cut_direction(self.view, weights, self.threshold)
        return direction(self.view, weights)
