"""Exponential moving average of the weights.

    a <- d a + (1 - d) theta        started at 0, read as a / (1 - d^t)

Read so, it is a convex combination of the iterates alone. Regions are convex: an average of feasible weights is feasible.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Average:
    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self._model = model
        self.tensors = [torch.zeros_like(p, dtype=torch.float32) for p in _trained(model)]

    @torch.no_grad()
    def update(self) -> None:
        torch._foreach_lerp_(self.tensors, [p.float() for p in _trained(self._model)], 1 - self.decay)

    @torch.no_grad()
    def write_to(self, model: nn.Module, steps: int) -> None:
        """Put the average over `steps` updates into a copy of the model."""
        for p, average in zip(_trained(model), self.tensors, strict=True):
            p.copy_(average / (1 - self.decay**steps))

    def load(self, tensors: list[Tensor]) -> None:
        for own, saved in zip(self.tensors, tensors, strict=True):
            own.copy_(saved)


def _trained(model: nn.Module) -> list[nn.Parameter]:
    """What is frozen stays bit for bit as it is."""
    return [p for p in model.parameters() if p.requires_grad]
