"""Gradients at weights other than those that the optimizer moves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from torch import Tensor, nn

from sparsefw.compression.in_place.restriction import unchanged_buffers


class Perturbable(NamedTuple):
    """The parameters that have gradients, and these gradients."""

    parameters: list[Tensor]
    gradients: list[Tensor]


@contextmanager
def perturbed_weights(model: nn.Module) -> Iterator[Perturbable]:
    """Yield the parameters to move and their gradients; when the block ends, restore all weights and buffers.

    Within the block gradients start at None. Buffers are restored because statistics of norms at the moved weights are not
    those of the trained network.
    """
    parameters: list[Tensor] = [p for p in model.parameters() if p.grad is not None]
    gradients = [p.grad for p in parameters if p.grad is not None]
    weights = [(p.data, p.data.clone()) for p in model.parameters()]
    for p in parameters:
        p.grad = None
    with unchanged_buffers(model):
        try:
            yield Perturbable(parameters, gradients)
        finally:
            for weight, before in weights:
                weight.copy_(before)
