"""SSL: SGD with a group penalty on the filters W_j.

    gradient += strength * W_j / ||W_j||

Wen, Wu, Wang, Chen, Li: Learning Structured Sparsity in Deep Neural Networks, NeurIPS 2016.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import nn

from sparsefw.geometry.cuts import direction
from sparsefw.geometry.views import Groups
from sparsefw.kinds import FILTERS, Kind
from sparsefw.methods.base import Method, register
from sparsefw.methods.weight_stacks import weight_stacks


@register
class SSL(Method):
    """SGD on loss + strength * sum of ||W_j||_2 over the filters W_j of all convolutions.

    This is the filter-wise term of the four in the paper. Filters that are 0 stay 0.
    """

    title: ClassVar[str] = "SSL"
    paper: ClassVar[str] = "Wen, Wu, Wang, Chen, Li: NeurIPS 2016, arXiv:1608.03665"
    removes: ClassVar[Kind | None] = FILTERS

    name: Literal["ssl"] = "ssl"
    strength: float = Field(default=1e-3, ge=0, allow_inf_nan=False)

    @torch.no_grad()
    def adjust(self, model: nn.Module) -> None:
        for stack in weight_stacks(model, FILTERS) if self.strength else ():
            stack.add_to_gradients(self.strength * direction(Groups(), stack.weights()))
