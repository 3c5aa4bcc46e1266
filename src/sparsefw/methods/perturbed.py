"""A second look: gradients at other weights than those that are moved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn


@contextmanager
def elsewhere(model: nn.Module) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """The parameters that have gradients, to be moved, and these gradients; afterwards all weights are where they were.

    Gradients begin anew. Norms keep the statistics of the first look: those of another network than the trained one are wrong.
    """
    parameters: list[Tensor] = [p for p in model.parameters() if p.grad is not None]
    gradients = [p.grad for p in parameters if p.grad is not None]
    weights = [(p.data, p.data.clone()) for p in model.parameters()]
    buffers = [(m, name, b, b.clone()) for m in model.modules() for name, b in m._buffers.items() if b is not None]
    for p in parameters:
        p.grad = None
    try:
        yield parameters, gradients
    finally:
        for weight, before in weights:
            weight.copy_(before)
        for module, name, buffer, before in buffers:  # some modules put another tensor in the place of a buffer
            buffer.copy_(before)
            module._buffers[name] = buffer
