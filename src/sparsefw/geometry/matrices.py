"""Weights as matrices: a row for each output channel, with everything that computes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor


def as_matrices(weight: Tensor, axis: int = 0, groups: int = 1) -> Tensor:
    """Return the weight as (groups, outputs per group, inputs per group * kernel).

    Args:
        weight: (outputs, inputs per group, *kernel), or (inputs, outputs per group, *kernel) with axis=1.
        axis: the axis of the output channels; 1 for transposed convolutions.
        groups: how many groups of channels the layer has; axis 0 is divided among them.

    >>> import torch
    >>> tuple(as_matrices(torch.zeros(8, 3, 5, 5)).shape), tuple(as_matrices(torch.zeros(8, 3, 5, 5), groups=2).shape)
    ((1, 8, 75), (2, 4, 75))
    """
    grouped = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
    return grouped.movedim(axis + 1, 1).flatten(2)


def from_matrices(matrices: Tensor, shape: Sequence[int], axis: int = 0, groups: int = 1) -> Tensor:
    """Return matrices as a weight of this shape: the inverse of as_matrices."""
    if axis == 0:
        return matrices.reshape(tuple(shape))
    grouped = matrices.reshape(groups, shape[1], shape[0] // groups, *shape[2:])
    return grouped.transpose(1, 2).reshape(tuple(shape))


def matrices_of(stack: Tensor) -> Tensor:
    """Return a stack (b, n, ...) of tensors as matrices (b, n, m), first axis times all others."""
    return stack.reshape(stack.shape[0], stack.shape[1], -1)


def wide_matrices(stack: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Return the stack as matrices (b, n, m) with n <= m, transposed where necessary, and the function that undoes it."""
    matrices = matrices_of(stack)
    if matrices.shape[1] > matrices.shape[2]:
        return matrices.mT, lambda wide: wide.mT.reshape(stack.shape)
    return matrices, lambda wide: wide.reshape(stack.shape)
