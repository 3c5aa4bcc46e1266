"""Low rank: a layer's weight, seen as outputs x (inputs * kernel), becomes a product of two smaller ones.

    minimise ||W - B A||_F  over  B: n x t,  A: t x f          (the truncated singular value decomposition)

A is a layer like the original with t outputs, B a layer of 1 x 1 kernels on top of it. With groups, one product per group.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sparsefw.compression.structure.layers import as_matrices, bias_of, groups_of, is_adorned, set_weight, weight_of
from sparsefw.compression.structure.masks import share_of
from sparsefw.geometry.subspace import gram_vectors
from sparsefw.layer_types import CONVOLUTIONS, TRANSPOSED

STANDARD: tuple[Any, ...] = (nn.Linear, *CONVOLUTIONS, *TRANSPOSED)


def is_standard(layer: nn.Module) -> bool:
    """Whether the layer computes with its weight what torch's own class does; subclasses may standardise it, or pad otherwise."""
    own = next(kind for kind in STANDARD if isinstance(layer, kind))
    same = all(getattr(type(layer), name, None) is getattr(own, name, None) for name in ("forward", "_conv_forward"))
    return same and not is_adorned(layer)


def obstacle(model: nn.Module, name: str) -> str:
    """Why a layer cannot become two; empty where it can."""
    layer = model.get_submodule(name)
    if not is_standard(layer):
        return f"{type(layer).__name__} has a forward or hooks of its own"
    if sum(module is layer for _, module in model.named_modules(remove_duplicate=False)) > 1:
        return "the model knows it by several names"
    return "" if full_rank(layer) > 1 else "its matrices have rank 1"


def full_rank(layer: nn.Module) -> int:
    """The largest rank that the weight can have (per group)."""
    _, n, f = as_matrices(layer).shape
    return min(n, f)


def kept_rank(layer: nn.Module, ratio: float, round_to: int = 1) -> int:
    """How many singular values stay when `ratio` of them are removed: at least one, rounded to a multiple on request."""
    full = full_rank(layer)
    kept = share_of(1 - ratio, full)
    return min(full, max(round_to, round(kept / round_to) * round_to))


def is_smaller(layer: nn.Module, rank: int) -> bool:
    """Whether two layers of this rank have fewer weights than the one."""
    _, n, f = as_matrices(layer).shape
    return rank * (n + f) < n * f


def truncate(matrices: Tensor, rank: int) -> Tensor:
    """argmin ||W - X||_F over X of at most this rank, per group."""
    outer, inner = factors(matrices, rank)
    return outer @ inner


def factors(matrices: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """B (g, n, t) and A (g, t, f) with B A the best approximation of rank t; balanced: B^T B = A A^T = diag(s)."""
    W = matrices.detach().double()
    if W.shape[1] > W.shape[2]:
        inner, outer = factors(matrices.mT, rank)
        return outer.mT, inner.mT
    U, s = gram_vectors(W)
    U, root = U[..., :rank], s[:, :rank].sqrt()
    inner = (U.mT @ W) / torch.where(root > 0, root, 1).unsqueeze(2)
    return (U * root.unsqueeze(1)).to(matrices.dtype), inner.to(matrices.dtype)


def split(layer: nn.Module, rank: int) -> nn.Sequential:
    """Two plain layers for one, by the truncated singular value decomposition: exact at full rank."""
    first, second = empty_pair(layer, rank)
    outer, inner = factors(as_matrices(layer), rank)
    set_weight(first, inner)
    set_weight(second, outer)
    old_bias, new_bias = bias_of(layer), bias_of(second)
    if old_bias is not None and new_bias is not None:
        with torch.no_grad():
            new_bias.copy_(old_bias)
        new_bias.requires_grad_(old_bias.requires_grad)
    for part in (first, second):
        weight_of(part).requires_grad_(weight_of(layer).requires_grad)
    return nn.Sequential(first, second).train(layer.training)


def empty_pair(layer: Any, rank: int) -> tuple[nn.Module, nn.Module]:
    """The two layers for one; their weights are still to be written, so no random numbers are drawn for them."""
    where = dict(device=layer.weight.device, dtype=layer.weight.dtype)
    bias, between = layer.bias is not None, rank * groups_of(layer)
    if isinstance(layer, nn.Linear):
        return (
            nn.utils.skip_init(nn.Linear, layer.in_features, rank, bias=False, **where),
            nn.utils.skip_init(nn.Linear, rank, layer.out_features, bias=bias, **where),
        )
    geometry = {name: getattr(layer, name) for name in ("stride", "padding", "dilation", "groups", "padding_mode")}
    if isinstance(layer, TRANSPOSED):
        geometry["output_padding"] = layer.output_padding
    kind = next(kind for kind in STANDARD if isinstance(layer, kind))
    pointwise = CONVOLUTIONS[len(layer.kernel_size) - 1]
    first: Any = nn.utils.skip_init(
        kind, layer.in_channels, between, layer.kernel_size, bias=False, **geometry, **where
    )
    second: Any = nn.utils.skip_init(pointwise, between, layer.out_channels, 1, groups=layer.groups, bias=bias, **where)
    channels_last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(layer.weight.ndim)
    # A 1 x 1 kernel is contiguous in both formats and says nothing about which one the model is in.
    if channels_last and not layer.weight.is_contiguous() and layer.weight.is_contiguous(memory_format=channels_last):
        first, second = (part.to(memory_format=channels_last) for part in (first, second))
    return first, second
