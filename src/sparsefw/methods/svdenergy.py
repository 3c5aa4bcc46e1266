"""SVDEnergy: SGD, followed by a soft cut of the singular values.

Alvarez, Salzmann: Compression-aware Training of Deep Networks, NeurIPS 2017; singular value thresholding is Cai's, Candes' and
Shen's, 2008.
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
from sparsefw.methods.layers import layers_of
from sparsefw.methods.proximal import Proximal
from sparsefw.methods.spectral import Spectral


@register
class SVDEnergy(Spectral, Proximal):
    """W <- argmin_Y 1/2 ||Y - W||^2 + lr strength ||Y||_* = U max(S - lr strength, 0) V^T after every step (or epoch) of SGD.

    Once an epoch as published; the comparison of arXiv:2205.11921 found every step more effective.
    """

    title: ClassVar[str] = "SVDEnergy"
    paper: ClassVar[str] = "Alvarez, Salzmann: NeurIPS 2017, arXiv:1711.02638"
    forms: ClassVar[Mapping[str, Mapping[str, Any]]] = {"svdenergy": {}, "svdenergy-svd": {"svd": True}}

    name: Literal["svdenergy"] = "svdenergy"
    strength: float = Field(default=1e-2, ge=0, allow_inf_nan=False)

    @torch.no_grad()
    def cut(self, model: nn.Module, lr: float | Tensor) -> None:
        for layers in layers_of(model, RANK):
            layers.write(soft_cut(self.view, layers.weights(), lr * self.strength))
