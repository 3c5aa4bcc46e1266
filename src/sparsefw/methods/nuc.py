"""NUC: SGD with a nuclear-norm penalty on the convolutions W = U S V^T.

    gradient += strength * U V^T

Denton, Zaremba, Bruna, LeCun, Fergus: Exploiting Linear Structure Within Convolutional Networks for Efficient Evaluation,
NeurIPS 2014. The subgradient: Watson: Characterization of the subdifferential of some matrix norms, 1992.
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
from sparsefw.methods.spectral import Spectral
from sparsefw.methods.weight_stacks import weight_stacks


@register
class NUC(Spectral):
    """SGD on loss + strength * sum of ||W||_* over all convolutions, W a matrix with one row per filter."""

    title: ClassVar[str] = "NUC"
    paper: ClassVar[str] = "Denton, Zaremba, Bruna, LeCun, Fergus: NeurIPS 2014, arXiv:1404.0736; Watson 1992"
    forms: ClassVar[Mapping[str, Mapping[str, Any]]] = {"nuc": {}, "nuc-svd": {"svd": True}}

    name: Literal["nuc"] = "nuc"
    strength: float = Field(default=1e-3, ge=0, allow_inf_nan=False)

    @torch.no_grad()
    def adjust(self, model: nn.Module) -> None:
        for stack in weight_stacks(model, RANK) if self.strength else ():
            stack.add_to_gradients(self.strength * direction(self.view, stack.weights()))
