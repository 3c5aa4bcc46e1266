"""Masks of weights: the smallest entries are removed, over all layers at once or N of every M along the input channels.

minimise ||W - X||_F  over  X with the given number of nonzero entries
"""

from __future__ import annotations

import math

from torch import Tensor, nn

from sparsefw.compression.structure.layers import weight_of
from sparsefw.geometry import cuts
from sparsefw.layer_types import input_axis


def share_of(ratio: float, count: int) -> int:
    """Return floor(ratio * count), without the rounding of the ratio.

    >>> share_of(0.7, 44_500_000), share_of(1 / 3, 3)
    (31150000, 1)
    """
    return math.floor(ratio * count * (1 + 1e-12) + 1e-9)


def global_masks(weights: dict[str, Tensor], removed: float) -> dict[str, Tensor]:
    """Return masks that remove exactly floor(removed * N) of all N entries, the smallest ones; of equal ones the first stay."""
    count = sum(weight.numel() for weight in weights.values())
    masks = cuts.largest_masks(list(weights.values()), count - share_of(removed, count))
    return dict(zip(weights, masks, strict=True))


def n_m_mask(layer: nn.Module, n: int, m: int) -> Tensor:
    """Return True at the n largest of every m entries along the input channels; all True if the layer has at most n."""
    return cuts.n_m_mask(weight_of(layer), n, m, input_axis(layer))
