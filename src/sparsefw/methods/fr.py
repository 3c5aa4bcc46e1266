"""FR: SGD with a force between the filters of a layer, which turns them towards a space of few dimensions.

    gradient -= strength * D,   D_i = ||W_i|| (I - w_i w_i^T) sum_{j != i} f(w_j - w_i),   W_i = ||W_i|| w_i

Wen, Xu, Wu, Wang, Chen, Li: Coordinating Filters for Faster Deep Neural Networks, ICCV 2017.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from sparsefw.geometry.cuts import direction
from sparsefw.geometry.views import Groups
from sparsefw.kinds import RANK, Kind
from sparsefw.methods.base import Method, register
from sparsefw.methods.weight_stacks import weight_stacks

_TOO_CLOSE = 1e-6  # far above the rounding of float64: between unit filters at this distance there is no direction


@register
class FR(Method):
    """SGD with -strength * D added to the gradient, D a force between the directions of all filters of a layer.

        D_i = ||W_i|| (I - w_i w_i^T) sum_{j != i} f(w_j - w_i),   W_i = ||W_i|| w_i

    f(z) = z for the "l2" force, z / ||z|| for "l1". The projection preserves norms. Filters that are 0 neither exert nor feel
    a force.
    """

    title: ClassVar[str] = "FR"
    paper: ClassVar[str] = "Wen, Xu, Wu, Wang, Chen, Li: ICCV 2017, arXiv:1703.09746"
    removes: ClassVar[Kind | None] = RANK

    name: Literal["fr"] = "fr"
    strength: float = Field(default=1e-3, ge=0, allow_inf_nan=False)
    force: Literal["l2", "l1"] = "l2"

    @torch.no_grad()
    def adjust(self, model: nn.Module) -> None:
        for stack in weight_stacks(model, RANK) if self.strength else ():
            stack.add_to_gradients(-self.strength * self.forces(stack.weights()))

    def forces(self, weights: Tensor) -> Tensor:
        """Return D of every filter, (b, n, f)."""
        norms = torch.linalg.vector_norm(weights, dim=-1, keepdim=True)
        unit = direction(Groups(), weights)
        # The projection removes the part of the pull along w_i: only the terms of w_j are summed.
        pull = unit.sum(-2, keepdim=True) if self.force == "l2" else _sum_over_distances(weights)
        return norms * (pull - unit * (unit * pull).sum(-1, keepdim=True))


def _sum_over_distances(weights: Tensor) -> Tensor:
    """Return sum_j w_j / ||w_j - w_i|| for every filter i. In float64: a Gram matrix loses half of the digits of a distance."""
    unit = direction(Groups(), weights.double())
    distances = (2 - 2 * unit @ unit.mT).clamp(min=0).sqrt()
    distances.diagonal(dim1=-2, dim2=-1).zero_()
    return (torch.where(distances > _TOO_CLOSE, 1 / distances, 0) @ unit).to(weights.dtype)
