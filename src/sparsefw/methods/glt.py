"""GLT: SGD, followed by the proximal step of a (sparse) group lasso on the filters W_j with P weights each.

    W <- soft cut of the weights by lr * strength * lasso
    W_j <- soft cut of the norms ||W_j|| by lr * strength * (1 - lasso) * sqrt(P)

Alvarez, Salzmann: Learning the Number of Neurons in Deep Networks, NeurIPS 2016.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from sparsefw.geometry.cuts import soft_cut
from sparsefw.geometry.views import Elements, Groups
from sparsefw.kinds import FILTERS, Kind
from sparsefw.methods.base import register
from sparsefw.methods.proximal import Proximal
from sparsefw.methods.weight_stacks import weight_stacks


@register
class GLT(Proximal):
    """SGD on the loss alone; after every step (or epoch) W <- argmin_Y 1/2 ||Y - W||^2 + lr r(Y), a (sparse) group lasso.

    r(W) = strength * sum over layers of [ (1 - lasso) sqrt(P) sum_j ||W_j||_2 + lasso ||W||_1 ]
    """

    title: ClassVar[str] = "GLT"
    paper: ClassVar[str] = "Alvarez, Salzmann: NeurIPS 2016, arXiv:1611.06321"
    removes: ClassVar[Kind | None] = FILTERS

    name: Literal["glt"] = "glt"
    strength: float = Field(default=1e-4, ge=0, allow_inf_nan=False)
    lasso: float = Field(default=0.0, ge=0, le=1)

    @torch.no_grad()
    def cut(self, model: nn.Module, lr: float | Tensor) -> None:
        for stack in weight_stacks(model, FILTERS):
            weights = stack.weights()
            if self.lasso:
                weights = soft_cut(Elements(), weights, lr * self.lasso * self.strength)
            group_strength = (1 - self.lasso) * self.strength * math.sqrt(weights[0, 0].numel())
            stack.write(soft_cut(Groups(), weights, lr * group_strength))
