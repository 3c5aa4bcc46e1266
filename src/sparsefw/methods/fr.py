"""FR: filters attract each other, so that they come to lie in a space of few dimensions.

Wen, Xu, Wu, Wang, Chen, Li: Coordinating Filters for Faster Deep Neural Networks, ICCV 2017.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from sparsefw.geometry.gauges import divide
from sparsefw.kinds import RANK, Kind
from sparsefw.methods.base import Method, register
from sparsefw.methods.layers import layers_of

_TOO_CLOSE = 1e-6  # far above the rounding of float64: unit filters at this distance have no direction between them


@register
class FR(Method):
    """SGD with -strength * D added to the gradient, D a force between the directions of all filters of a layer.

        D_i = ||W_i|| (I - w_i w_i^T) sum_{j != i} f(w_j - w_i),   W_i = ||W_i|| w_i

    f(z) = z for the "l2" force, z / ||z|| for "l1". The projection keeps norms; filters that are 0 feel and cause nothing.
    """

    title: ClassVar[str] = "FR"
    paper: ClassVar[str] = "Wen, Xu, Wu, Wang, Chen, Li: ICCV 2017, arXiv:1703.09746"
    removes: ClassVar[Kind | None] = RANK

    name: Literal["fr"] = "fr"
    strength: float = Field(default=1e-3, ge=0, allow_inf_nan=False)
    force: Literal["l2", "l1"] = "l2"

    @torch.no_grad()
    def adjust(self, model: nn.Module) -> None:
        for layers in layers_of(model, RANK) if self.strength else ():
            layers.add_to_gradients(-self.strength * self.forces(layers.weights()))

    def forces(self, weights: Tensor) -> Tensor:
        """D of every filter, (b, n, f)."""
        norms = torch.linalg.vector_norm(weights, dim=-1, keepdim=True)
        unit = weights * divide(1, norms)
        if self.force == "l2":
            pull = unit.sum(-2, keepdim=True)
        else:  # w_i itself, in w_j - w_i, is projected away; distances by a Gram matrix lose half of all digits
            exact = weights.double()
            exact = exact * divide(1, torch.linalg.vector_norm(exact, dim=-1, keepdim=True))
            distances = (2 - 2 * exact @ exact.mT).clamp(min=0).sqrt()
            distances.diagonal(dim1=-2, dim2=-1).zero_()
            pull = (torch.where(distances > _TOO_CLOSE, 1 / distances, 0) @ exact).to(weights.dtype)
        return norms * (pull - unit * (unit * pull).sum(-1, keepdim=True))
