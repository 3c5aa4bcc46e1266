"""SFP: after every epoch the smallest filters are set to zero, and may grow again.

He, Kang, Dong, Fu, Yang: Soft Filter Pruning for Accelerating Deep Convolutional Neural Networks, IJCAI 2018.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import nn

from sparsefw.geometry.cuts import hard_cut
from sparsefw.geometry.views import Groups
from sparsefw.kinds import FILTERS, Kind
from sparsefw.methods.base import Method, register
from sparsefw.methods.layers import layers_of
from sparsefw.optim import SFW


@register
class SFP(Method):
    """SGD; after every epoch from `start_epoch` on, and so after the last, W <- argmin ||Y - W|| over Y with few filters.

    Few: all but floor(n (1 - k)) of n, k the fraction that is kept. Momenta are left as they are.
    """

    title: ClassVar[str] = "SFP"
    paper: ClassVar[str] = "He, Kang, Dong, Fu, Yang: IJCAI 2018, arXiv:1808.06866"
    removes: ClassVar[Kind | None] = FILTERS
    averages: ClassVar[bool] = False  # filters that were zero at different times are zero in no average

    name: Literal["sfp"] = "sfp"
    k: float = Field(default=0.7, gt=0, le=1)
    start_epoch: int = Field(default=0, ge=0)

    @property
    def least_epochs(self) -> int:
        return self.start_epoch + 1

    @torch.no_grad()
    def after_epoch(self, model: nn.Module, optimizer: SFW, epoch: int, epochs: int) -> None:
        for layers in layers_of(model, FILTERS) if epoch > self.start_epoch else ():
            weights = layers.weights()
            count = weights.shape[1]
            layers.write(hard_cut(Groups(), weights, count - math.floor(count * (1 - self.k) + 1e-9)))
