"""SVDEnergy: SGD, followed by a soft cut of the singular values of the convolutions W = U S V^T.

    W <- U max(S - lr * strength, 0) V^T

Alvarez, Salzmann: Compression-aware Training of Deep Networks, NeurIPS 2017. Singular value thresholding: Cai, Candes, Shen:
A Singular Value Thresholding Algorithm for Matrix Completion, 2008.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from sparsefw.geometry.cuts import soft_cut
from sparsefw.kinds import RANK
from sparsefw.methods.base import register
from sparsefw.methods.proximal import Proximal
from sparsefw.methods.spectral import Spectral
from sparsefw.methods.weight_stacks import weight_stacks


@register
class SVDEnergy(Spectral, Proximal):
    """W <- argmin_Y 1/2 ||Y - W||^2 + lr strength ||Y||_* = U max(S - lr strength, 0) V^T after every step (or epoch) of SGD.

    Published with one cut per epoch; the comparison of arXiv:2205.11921 found a cut after every step more effective.
    """

    title: ClassVar[str] = "SVDEnergy"
    paper: ClassVar[str] = "Alvarez, Salzmann: NeurIPS 2017, arXiv:1711.02638"
    forms: ClassVar[Mapping[str, Mapping[str, Any]]] = {"svdenergy": {}, "svdenergy-svd": {"svd": True}}

    name: Literal["svdenergy"] = "svdenergy"
    strength: float = Field(default=1e-2, ge=0, allow_inf_nan=False)

    @torch.no_grad()
    def cut(self, model: nn.Module, lr: float | Tensor) -> None:
        for stack in weight_stacks(model, RANK):
            stack.write(soft_cut(self.view, stack.weights(), lr * self.strength))
