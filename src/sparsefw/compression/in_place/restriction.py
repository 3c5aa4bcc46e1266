"""Restrictions: weights and gradients restricted to the units that stay, for the duration of a block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from sparsefw.compression.in_place.attention import gradient_of, whole_of
from sparsefw.compression.in_place.slices import InSlices, OnePassError


class Restriction(ABC):
    """A map of parameters and buffers to their values without the units that go, and of gradients onto those that stay.

    tensors   what is restricted
    values    of these tensors, in the same order, without the units that go
    """

    def __init__(self, tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
        self.tensors = list(tensors)
        self.values = list(values)

    @abstractmethod
    def restrict_gradients(self) -> None:
        """Map the gradients of the tensors, in place, onto the units that stay."""


class Mask(Restriction):
    """Tensors times masks of 0 and 1, which have the dtypes of the tensors."""

    def __init__(self, tensors: Sequence[Tensor], masks: Sequence[Tensor]) -> None:
        values = torch._foreach_mul([tensor.detach() for tensor in tensors], list(masks)) if tensors else []
        super().__init__(tensors, values)
        self._masks = masks

    def restrict_gradients(self) -> None:
        gradients = map(gradient_of, self.tensors)
        trained = [(g, mask) for g, mask in zip(gradients, self._masks, strict=True) if g is not None]
        if trained:
            torch._foreach_mul_([gradient for gradient, _ in trained], [mask for _, mask in trained])


class InPlaceCut(ABC):
    """How one kind makes one network smaller in place.

    A size is given as numbers in a tensor, which the host never reads: steps that are captured once in a CUDA graph replay with
    others. Units are ranked by the weights as they are at the moment.
    """

    @abstractmethod
    def numbers(self, ratio: float) -> Tensor:
        """Return how many units go, or stay, if this ratio is removed: on the CPU, of the same shape for every ratio."""

    @abstractmethod
    def restriction(self, numbers: Tensor) -> Restriction:
        """Return the restriction that leaves the network with these numbers of units; numbers are on the model's device."""

    def in_slices(self, model: nn.Module) -> InSlices:
        """Return how the network has several sizes in one pass; OnePassError says why it cannot."""
        raise OnePassError("only channels and ranks can be lowered for some images")


@contextmanager
def restricted(model: nn.Module, restriction: Restriction) -> Iterator[None]:
    """Restrict weights and their gradients for the duration of a block.

    Gradients of the block are restricted when it ends, and then added to those that were there before, unless zero_grad() in the
    block cleared them. Weights and buffers are as they were afterwards, also after an exception: statistics that norms collect in
    a smaller network are not those of the whole one. A backward pass must be in the same block as its forward pass; behind it,
    autograd refuses. A step of the optimizer must be behind the block; in it, it is refused.
    """
    tensors = [tensor.detach() for tensor in restriction.tensors]
    before = copies(tensors)
    with unchanged_buffers(model), _separate_gradients(model, restriction), _no_steps(restriction.tensors):
        try:
            _write(tensors, restriction.values)
            yield
        finally:
            _write(tensors, before)


def _write(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    if tensors:
        torch._foreach_copy_(list(tensors), list(values))
    torch.clear_autocast_cache()  # it holds weights in half precision, as they were when first used


@contextmanager
def _separate_gradients(model: nn.Module, restriction: Restriction) -> Iterator[None]:
    """Restrict the gradients that a block computes, and no others."""
    earlier = [(p, p.grad, torch.zeros_like(p.grad)) for p in model.parameters() if p.grad is not None]
    for p, _, zeros in earlier:
        p.grad = zeros  # not None: so zero_grad() in the block is noticed, which also clears those from before
    try:
        yield
    finally:
        stay = [(p, before) for p, before, zeros in earlier if p.grad is zeros or _has_graph(p.grad)]
        restriction.restrict_gradients()
        added = [p.grad for p, _ in stay if p.grad is not None]
        if added:
            torch._foreach_add_([before for _, before in stay], added)
        for p, before in stay:
            p.grad = before


def _has_graph(gradient: Tensor | None) -> bool:
    """Return whether it comes from backward(create_graph=True), which replaces .grad by a sum instead of adding to it."""
    return gradient is not None and gradient.requires_grad


@contextmanager
def _no_steps(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Refuse steps of optimizers that move these tensors."""
    restricted = {id(whole_of(tensor)) for tensor in tensors}

    def refuse(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if any(id(p) in restricted for group in optimizer.param_groups for p in group["params"]):
            raise RuntimeError(
                "the optimizer's step() is in the block in which the network is smaller, and would be undone at its end: "
                "call it behind the block"
            )

    handle = register_optimizer_step_pre_hook(refuse)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def unchanged_buffers(model: nn.Module) -> Iterator[None]:
    """Restore all buffers after a block, also those that a module replaces by other tensors."""
    owners = [(m, name, b) for m in model.modules() for name, b in m._buffers.items() if b is not None]
    buffers = [buffer for _, _, buffer in owners if not _is_expanded(buffer)]
    before = copies(buffers)
    try:
        yield
    finally:
        if buffers:
            with torch.no_grad():
                torch._foreach_copy_(buffers, before)
        for module, name, buffer in owners:
            module._buffers[name] = buffer


def _is_expanded(tensor: Tensor) -> bool:
    """Return whether several entries are one number in memory: torch refuses to write to it, so nobody can have changed it."""
    return any(stride == 0 and length > 1 for stride, length in zip(tensor.stride(), tensor.shape, strict=True))


def copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return copies of tensors, made by a few launches for all."""
    fresh = [torch.empty_like(tensor) for tensor in tensors]
    if fresh:
        with torch.no_grad():
            torch._foreach_copy_(fresh, list(tensors))
    return fresh
