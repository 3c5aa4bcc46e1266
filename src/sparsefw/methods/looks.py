"""A second look: gradients at other weights than those that are moved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn


def gradients_of(model: nn.Module) -> list[Tensor]:
    """Those that are there by now."""
    return [p.grad for p in model.parameters() if p.grad is not None]


@contextmanager
def elsewhere(model: nn.Module) -> Iterator[list[Tensor]]:
    """The parameters that have gradients, to be moved, without them; afterwards they are where they were, with those found there.

    Norms keep the statistics of the first look: those of a network that is not the trained one would be wrong for it.
    """
    parameters: list[Tensor] = [p for p in model.parameters() if p.grad is not None]
    touched = [*(p.data for p in parameters), *model.buffers()]
    before = [t.clone() for t in touched]
    for p in parameters:
        p.grad = None
    try:
        yield parameters
    finally:
        for t, old in zip(touched, before, strict=True):
            t.copy_(old)
