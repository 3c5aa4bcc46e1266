"""SAM: SGD with the gradient at the weights nearby where the loss is largest.

    theta <- theta - lr grad(theta + rho g / ||g||),   g = grad(theta)

Foret, Kleiner, Mobahi, Neyshabur: Sharpness-Aware Minimization for Efficiently Improving Generalization, ICLR 2021.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from sparsefw.geometry.gauges import divide
from sparsefw.methods.base import Backward, Batch, Method, register
from sparsefw.methods.perturbed import perturbed_weights


@register
class SAM(Method):
    """SGD with the gradient at theta + rho g / ||g||, g the gradient at theta, its norm over all parameters."""

    title: ClassVar[str] = "SAM"
    paper: ClassVar[str] = "Foret, Kleiner, Mobahi, Neyshabur: ICLR 2021, arXiv:2010.01412"
    passes: ClassVar[int] = 2

    name: Literal["sam"] = "sam"
    rho: float = Field(default=0.1, ge=0, allow_inf_nan=False)

    def gradients(self, model: nn.Module, batch: Batch, backward: Backward) -> Tensor:
        sums = backward(batch)
        with perturbed_weights(model) as (parameters, g):
            with torch.no_grad():
                norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(g)))  # the scale of the loss cancels
                torch._foreach_add_(parameters, torch._foreach_mul(g, divide(self.rho, norm)))
            backward(batch)
        return sums
