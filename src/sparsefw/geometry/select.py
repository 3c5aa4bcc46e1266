"""Exactly the k largest: of every row of a stack, without waiting for the device; of one vector, the same everywhere."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

# Below this length torch.topk is faster than leaving torch; above it numpy's partition wins on a CPU
# (2.4 million entries, k = 10 %: 4 ms instead of 50 ms on two cores).
_PARTITION_FROM = 16_384


def keep_top_k(magnitudes: Tensor, k: int) -> Tensor:
    """The magnitudes with all but exactly k largest along the last axis set to 0, whatever the ties; no host sync."""
    count = magnitudes.shape[-1]
    if k >= count:
        return magnitudes
    if (
        magnitudes.device.type == "cpu"
        and count >= _PARTITION_FROM
        and magnitudes.dtype in (torch.float32, torch.float64)
    ):
        return _keep_by_partition(magnitudes, k)
    values, chosen = magnitudes.topk(k, dim=-1, sorted=False)
    return torch.zeros_like(magnitudes).scatter_(-1, chosen, values)


def top_k_mask(magnitudes: Tensor, k: int) -> Tensor:
    """True at exactly k largest entries along the last axis; no host sync. Which of equal ones, is the device's choice."""
    chosen = magnitudes.topk(k, dim=-1, sorted=False).indices
    return torch.zeros_like(magnitudes, dtype=torch.bool).scatter_(-1, chosen, True)


def first_k_mask(magnitudes: Tensor, k: int) -> Tensor:
    """True at exactly k largest entries of a vector; of equal ones the first, so that every device and file chooses alike."""
    if not k:
        return torch.zeros_like(magnitudes, dtype=torch.bool)
    threshold = magnitudes.kthvalue(magnitudes.numel() - k + 1).values
    mask = magnitudes > threshold
    equal = (magnitudes == threshold).nonzero().flatten()
    mask[equal[: k - int(mask.sum())]] = True
    return mask


# A custom operator, so that torch.compile takes it as one opaque step instead of tracing into numpy.
@torch.library.custom_op("sparsefw::keep_by_partition", mutates_args=())
def _keep_by_partition(magnitudes: Tensor, k: int) -> Tensor:
    rows = magnitudes.detach().reshape(-1, magnitudes.shape[-1]).contiguous().numpy()
    kept = np.empty_like(rows)
    for row, out in zip(rows, kept, strict=True):
        threshold = np.partition(row, row.size - k)[row.size - k]
        above = row > threshold
        np.multiply(row, above, out=out)
        ties = np.flatnonzero(row == threshold)
        out[ties[: k - np.count_nonzero(above)]] = threshold
    return torch.from_numpy(kept).reshape(magnitudes.shape)


@_keep_by_partition.register_fake
def _(magnitudes: Tensor, k: int) -> Tensor:
    return torch.empty(magnitudes.shape, dtype=magnitudes.dtype, device=magnitudes.device)
