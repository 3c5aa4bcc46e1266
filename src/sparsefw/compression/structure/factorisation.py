"""Low rank: a layer's weight, seen as outputs x (inputs * kernel), becomes a product of two smaller ones.

    minimise ||W - B A||_F  over  B: n x t,  A: t x f          (the truncated singular value decomposition)

A is a layer like the original with t outputs, B a layer of 1 x 1 kernels on top of it. With groups, one product per group.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from sparsefw.compression.reasons import Cause, Reason, because
from sparsefw.compression.structure.layers import (
    as_matrices,
    bias_of,
    from_matrices,
    groups_of,
    is_customised,
    set_weight,
    weight_of,
)
from sparsefw.compression.structure.masks import share_of
from sparsefw.compression.structure.same_padding import SamePaddedConv2d
from sparsefw.geometry.cuts import low_rank_factors
from sparsefw.layer_types import CONVOLUTIONS, TRANSPOSED, largest_rank, output_axis

STANDARD: tuple[Any, ...] = (SamePaddedConv2d, nn.Linear, *CONVOLUTIONS, *TRANSPOSED)


def is_standard(layer: nn.Module) -> bool:
    """Return whether a layer computes what its class in STANDARD does: subclasses may compute their weight or pad differently."""
    base = _standard_class(layer)
    same = all(getattr(type(layer), name, None) is getattr(base, name, None) for name in ("forward", "_conv_forward"))
    return same and not is_customised(layer)


def _standard_class(layer: nn.Module) -> Any:
    """Return the class in STANDARD that the layer is an instance of."""
    return next(base for base in STANDARD if isinstance(layer, base))


def obstacle(model: nn.Module, name: str) -> Reason | None:
    """Return why a layer cannot become two; None if it can."""
    layer = model.get_submodule(name)
    if is_customised(layer) or not (is_standard(layer) or isinstance(layer, nn.Linear)):
        return because(
            Cause.OWN_FORWARD, type=type(layer).__name__
        )  # that of a linear layer has no geometry, and is tried
    if sum(module is layer for _, module in model.named_modules(remove_duplicate=False)) > 1:
        return because(Cause.SEVERAL_NAMES)
    if full_rank(layer) == 1:
        return because(Cause.RANK_ONE)
    return None if is_smaller(layer, 1) else because(Cause.NEVER_SMALLER)


def full_rank(layer: nn.Module) -> int:
    """Return the largest rank that the weight can have, per group."""
    return largest_rank(layer, weight_of(layer).shape)


def kept_rank(layer: nn.Module, ratio: float, round_to: int = 1) -> int:
    """Return how many singular values stay if `ratio` of them are removed, up to the next multiple of round_to; at least one."""
    full = full_rank(layer)
    kept = share_of(1 - ratio, full)
    return min(full, max(round_to, math.ceil(kept / round_to) * round_to))


def is_smaller(layer: nn.Module, rank: int) -> bool:
    """Return whether two layers of this rank have fewer weights than the one."""
    _, n, f = as_matrices(layer).shape
    return rank * (n + f) < n * f


def least_ratio(layer: nn.Module) -> float:
    """Return the fraction of singular values above which two layers have fewer weights than the one.

    >>> least_ratio(nn.Linear(64, 64)), least_ratio(nn.Linear(64, 192))
    (0.5, 0.25)
    """
    _, n, f = as_matrices(layer).shape
    return min(n, f) / (n + f)


def truncate(matrices: Tensor, rank: int) -> Tensor:
    """argmin ||W - X||_F over X of at most this rank, per group."""
    outer, inner = low_rank_factors(matrices, rank)
    return outer @ inner


class Factors(nn.Sequential):
    """Two layers for one. Model code may read from it what it would read from the one layer, also its weight: the product."""

    _OF_FIRST = (
        "in_features", "in_channels", "kernel_size", "stride", "padding", "output_padding", "dilation", "groups", "padding_mode",
    )  # fmt: skip
    _OF_LAST = ("out_features", "out_channels", "bias")

    @property
    def weight(self) -> Tensor:
        """The weight of one layer that computes the same."""
        first, last = self
        shape = list(weight_of(first).shape)
        shape[output_axis(first)] = weight_of(last).shape[0] // (
            groups_of(first) if isinstance(first, TRANSPOSED) else 1
        )
        return from_matrices(first, as_matrices(last) @ as_matrices(first), shape)

    def __getattr__(self, name: str) -> Any:
        if name in self._OF_FIRST:
            return getattr(self[0], name)
        if name in self._OF_LAST:
            return getattr(self[-1], name)
        return super().__getattr__(name)


def split(layer: nn.Module, rank: int) -> Factors:
    """Return two plain layers for one, by the truncated singular value decomposition: exact at full rank."""
    first, second = empty_pair(layer, rank)
    outer, inner = low_rank_factors(as_matrices(layer), rank)
    set_weight(first, inner)
    set_weight(second, outer)
    old_bias, new_bias = bias_of(layer), bias_of(second)
    if old_bias is not None and new_bias is not None:
        with torch.no_grad():
            new_bias.copy_(old_bias)
        new_bias.requires_grad_(old_bias.requires_grad)
    for part in (first, second):
        weight_of(part).requires_grad_(weight_of(layer).requires_grad)
    return Factors(first, second).train(layer.training)


def empty_pair(layer: Any, rank: int) -> tuple[nn.Module, nn.Module]:
    """Return two layers for one, with weights that are still to be written: no random numbers are drawn for them."""
    placed = dict(device=layer.weight.device, dtype=layer.weight.dtype)
    bias = layer.bias is not None
    if isinstance(layer, nn.Linear):
        return (
            nn.utils.skip_init(nn.Linear, layer.in_features, rank, bias=False, **placed),
            nn.utils.skip_init(nn.Linear, rank, layer.out_features, bias=bias, **placed),
        )
    between = rank * groups_of(layer)
    geometry = {name: getattr(layer, name) for name in ("stride", "padding", "dilation", "groups", "padding_mode")}
    if isinstance(layer, TRANSPOSED):
        geometry["output_padding"] = layer.output_padding
    pointwise = CONVOLUTIONS[len(layer.kernel_size) - 1]
    first: Any = nn.utils.skip_init(
        _standard_class(layer), layer.in_channels, between, layer.kernel_size, bias=False, **geometry, **placed
    )
    second: Any = nn.utils.skip_init(
        pointwise, between, layer.out_channels, 1, groups=layer.groups, bias=bias, **placed
    )
    channels_last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(layer.weight.ndim)
    # A 1 x 1 kernel is contiguous in both formats and does not show which one the model is in.
    if channels_last and not layer.weight.is_contiguous() and layer.weight.is_contiguous(memory_format=channels_last):
        first = first.to(memory_format=channels_last)
        second = second.to(memory_format=channels_last)
    return first, second
