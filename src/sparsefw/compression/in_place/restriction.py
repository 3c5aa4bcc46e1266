"""Restrictions: weights and gradients restricted to the units that stay, for the duration of a block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn


class Restriction(NamedTuple):
    """A parameter or buffer, its value without the units that go, and the map of its gradient onto those that stay."""

    tensor: Tensor
    value: Tensor
    of_gradient: Callable[[Tensor], Tensor]


class InPlaceCut(ABC):
    """How one kind makes one network smaller in place.

    A size is given as numbers in a tensor, which the host never reads: steps that are captured once in a CUDA graph replay with
    others. Units are ranked by the weights as they are at the moment.
    """

    capturable: ClassVar[bool] = True  # in a CUDA graph

    @abstractmethod
    def numbers(self, ratio: float) -> Tensor:
        """Return how many units go, or stay, if this ratio is removed: on the CPU, of the same shape for every ratio."""

    @abstractmethod
    def restrictions(self, numbers: Tensor) -> list[Restriction]:
        """Return the restrictions that leave the network with these numbers of units; numbers are on the model's device."""


def masked(tensors: Sequence[Tensor], masks: Sequence[Tensor]) -> list[Restriction]:
    """Return the restrictions that multiply tensors by masks of 0 and 1."""
    values = torch._foreach_mul([tensor.detach() for tensor in tensors], list(masks)) if tensors else []
    entries = zip(tensors, values, masks, strict=True)
    return [Restriction(tensor, value, mask.mul) for tensor, value, mask in entries]


@contextmanager
def restricted(model: nn.Module, restrictions: Sequence[Restriction]) -> Iterator[None]:
    """Restrict weights and their gradients for the duration of a block.

    Afterwards, also after an exception, weights and buffers are as they were: statistics that norms collect in a smaller network
    are not those of the whole one. A backward pass must be in the same block as its forward pass; behind it, autograd refuses.
    """
    tensors = [restriction.tensor.detach() for restriction in restrictions]
    before = [tensor.clone() for tensor in tensors]
    handles = [
        restriction.tensor.register_hook(restriction.of_gradient)
        for restriction in restrictions
        if restriction.tensor.requires_grad
    ]
    with unchanged_buffers(model):
        try:
            _write(tensors, [restriction.value for restriction in restrictions])
            yield
        finally:
            for handle in handles:
                handle.remove()
            _write(tensors, before)


def _write(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    if tensors:
        torch._foreach_copy_(list(tensors), list(values))
    torch.clear_autocast_cache()  # it holds weights in half precision, as they were when first used


@contextmanager
def unchanged_buffers(model: nn.Module) -> Iterator[None]:
    """Restore all buffers after a block, also those that a module replaces by other tensors."""
    buffers = [(m, name, b, b.clone()) for m in model.modules() for name, b in m._buffers.items() if b is not None]
    try:
        yield
    finally:
        for module, name, buffer, before in buffers:
            with torch.no_grad():
                buffer.copy_(before)
            module._buffers[name] = buffer
