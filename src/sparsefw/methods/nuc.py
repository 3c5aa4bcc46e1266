"""NUC: SGD with a penalty on the nuclear norms of the convolutions.

Denton, Zaremba, Bruna, LeCun, Fergus: Exploiting Linear Structure Within Convolutional Networks for Efficient Evaluation,
NeurIPS 2014; the subgradient is Watson's: Characterization of the subdifferential of some matrix norms, 1992.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import nn

from sparsefw.geometry.cuts import direction
from sparsefw.kinds import RANK
from sparsefw.methods.base import register
from sparsefw.methods.layers import layers_of
from sparsefw.methods.spectral import Spectral


@register
class NUC(Spectral):
    """SGD on loss + strength * sum of ||W||_* over all convolutions, W a matrix of filters x all else.

    A subgradient of ||W||_* is U V^T where W = U S V^T.
    """

    title: ClassVar[str] = "NUC"
    paper: ClassVar[str] = "Denton, Zaremba, Bruna, LeCun, Fergus: NeurIPS 2014, arXiv:1404.0736; Watson 1992"
    forms: ClassVar[Mapping[str, Mapping[str, Any]]] = {"nuc": {}, "nuc-svd": {"svd": True}}

    name: Literal["nuc"] = "nuc"
    strength: float = Field(default=1e-3, ge=0, allow_inf_nan=False)

    @torch.no_grad()
    def adjust(self, model: nn.Module) -> None:
        for layers in layers_of(model, RANK) if self.strength else ():
            layers.add_to_gradients(self.strength * direction(self.view, layers.weights()))
