"""Weights: the smallest entries set to 0, over all layers at once, per layer, or N of every M along the input channels.

minimise ||W - X||_F  over  X with the given number of nonzero entries
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from sparsefw.compression.structure.layers import weight_of
from sparsefw.geometry.select import first_k_mask, top_k_mask
from sparsefw.layer_types import TRANSPOSED


def share_of(ratio: float, count: int) -> int:
    """floor(ratio * count), where rounding of the ratio counts for nothing: 0.7 * 44,500,000 is 31,150,000, 1/3 * 3 is 1."""
    return math.floor(ratio * count * (1 + 1e-12) + 1e-9)


def global_masks(weights: dict[str, Tensor], removed: float) -> dict[str, Tensor]:
    """Masks that remove exactly floor(removed * N) of all N entries, the smallest ones; ties by position."""
    flat = torch.cat([w.detach().abs().flatten() for w in weights.values()])
    kept = flat.numel() - share_of(removed, flat.numel())
    parts = first_k_mask(flat, kept).split([w.numel() for w in weights.values()])
    return {name: part.view(w.shape) for (name, w), part in zip(weights.items(), parts, strict=True)}


def n_m_mask(layer: nn.Module, n: int, m: int) -> Tensor:
    """True at the n largest of every m entries along the input channels; all True where the layer has at most n."""
    weight = weight_of(layer).detach()
    axis = 0 if isinstance(layer, TRANSPOSED) else 1
    along = weight.abs().movedim(axis, -1)
    length = along.shape[-1]
    blocks = nn.functional.pad(along, (0, -length % m), value=-1.0).unflatten(-1, (-1, m))
    return top_k_mask(blocks, n).flatten(-2)[..., :length].movedim(-1, axis)
