"""Exponential moving average of the weights.

    a <- d a + (1 - d) theta        started at 0, read as a / (1 - d^t)

Read so, it is a convex combination of the iterates alone. Regions are convex: an average of feasible weights is feasible.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


# torch.optim.swa_utils.AveragedModel starts its average at the first iterate instead of 0: other weights, hence other bits.
class Average:
    """The average of the trained parameters of one model. Frozen parameters are left out: they stay bit for bit as they are."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self._model = model
        self.tensors = [torch.zeros_like(p, dtype=torch.float32) for p in _trained(model)]

    @torch.no_grad()
    def update(self) -> None:
        """Add the current weights."""
        torch._foreach_lerp_(self.tensors, [p.float() for p in _trained(self._model)], 1 - self.decay)

    @torch.no_grad()
    def write_to(self, model: nn.Module, steps: int) -> None:
        """Write the average over `steps` updates into a copy of the model."""
        for p, average in zip(_trained(model), self.tensors, strict=True):
            p.copy_(average / (1 - self.decay**steps))

    def load(self, tensors: list[Tensor]) -> None:
        """Restore the tensors of a checkpoint."""
        for average, saved in zip(self.tensors, tensors, strict=True):
            average.copy_(saved)


def _trained(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]
