"""SFP: SGD, and after every epoch a hard cut of the filters, which may grow again.

    W <- argmin ||Y - W|| over Y with at most k n nonzero filters, of n

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
from sparsefw.methods.weight_stacks import weight_stacks
from sparsefw.optim import SFW


@register
class SFP(Method):
    """SGD; after every epoch from `start_epoch` on, the last included, W <- argmin ||Y - W|| over Y with few filters.

    Of n filters, n - floor(n (1 - k)) stay. Momenta are not changed.
    """

    title: ClassVar[str] = "SFP"
    paper: ClassVar[str] = "He, Kang, Dong, Fu, Yang: IJCAI 2018, arXiv:1808.06866"
    removes: ClassVar[Kind | None] = FILTERS
    allows_averaging: ClassVar[bool] = False  # a filter that is 0 after some epochs only is not 0 in the average

    name: Literal["sfp"] = "sfp"
    k: float = Field(default=0.7, gt=0, le=1)
    start_epoch: int = Field(default=0, ge=0)

    @property
    def min_epochs(self) -> int:
        return self.start_epoch + 1

    @torch.no_grad()
    def after_epoch(self, model: nn.Module, optimizer: SFW, epoch: int, epochs: int) -> None:
        for stack in weight_stacks(model, FILTERS) if epoch > self.start_epoch else ():
            weights = stack.weights()
            count = weights.shape[1]
            removed = math.floor(count * (1 - self.k) + 1e-9)
            stack.write(hard_cut(Groups(), weights, count - removed))
