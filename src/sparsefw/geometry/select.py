"""Exactly the k largest.

Where magnitudes are tied, "the k largest" is not unique, and a threshold takes too many. Every function here takes exactly k.
Those for training accept any choice among equal ones and never wait for the device; those for files choose by position, so that
every device and every reader of a file chooses alike.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

# Below this length torch.topk is faster than leaving torch; above it numpy's partition wins on a CPU
# (2.4 million entries, k = 10 %: 4 ms instead of 50 ms on two cores).
_PARTITION_FROM = 16_384


def keep_top_k(magnitudes: Tensor, k: int) -> Tensor:
    """Return the magnitudes with all but exactly k largest along the last axis set to 0; no host sync.

    >>> keep_top_k(torch.tensor([3.0, 1.0, 2.0]), 2)
    tensor([3., 0., 2.])
    """
    count = magnitudes.shape[-1]
    if k >= count:
        return magnitudes
    on_cpu = magnitudes.device.type == "cpu"
    if on_cpu and count >= _PARTITION_FROM and magnitudes.dtype in (torch.float32, torch.float64):
        return _keep_by_partition(magnitudes, k)
    values, chosen = magnitudes.topk(k, dim=-1, sorted=False)
    return torch.zeros_like(magnitudes).scatter_(-1, chosen, values)


def top_k_indices(magnitudes: Tensor, k: int) -> Tensor:
    """Return the indices of exactly k largest entries along the last axis, in any order; no host sync."""
    return magnitudes.topk(k, dim=-1, sorted=False).indices


def top_k_mask(magnitudes: Tensor, k: int) -> Tensor:
    """Return True at exactly k largest entries along the last axis; no host sync."""
    mask = torch.zeros_like(magnitudes, dtype=torch.bool)
    return mask.scatter_(-1, top_k_indices(magnitudes, k), True)


def without_smallest_mask(magnitudes: Tensor, removed: Tensor) -> Tensor:
    """Return False at exactly `removed` smallest entries along the last axis, of equal ones the first.

    The number is a tensor on the device, which the host never reads: all entries are sorted. On a CPU, where reading it costs
    nothing, long vectors are not.
    """
    if magnitudes.device.type == "cpu" and magnitudes.ndim == 1 and len(magnitudes) >= _PARTITION_FROM:
        return ~stable_top_k_mask(-magnitudes, int(removed))
    order = magnitudes.argsort(dim=-1, stable=True)
    stays = torch.arange(magnitudes.shape[-1], device=magnitudes.device) >= removed
    mask = torch.zeros_like(magnitudes, dtype=torch.bool)
    return mask.scatter_(-1, order, stays.expand_as(magnitudes))


def without_smallest_masks(magnitudes: Tensor, removed: Tensor) -> Tensor:
    """Return without_smallest_mask for several numbers at once, by one sort.

    Args:
        magnitudes: (rows, entries).
        removed: (sizes, rows).

    Returns:
        (sizes, rows, entries).
    """
    order = magnitudes.argsort(dim=-1, stable=True)
    rank = torch.empty_like(order).scatter_(
        -1, order, torch.arange(order.shape[-1], device=order.device).expand_as(order)
    )
    return rank >= removed.unsqueeze(-1)


def stable_top_k_mask(magnitudes: Tensor, k: int) -> Tensor:
    """Return True at exactly k largest entries of a vector, of equal ones the first.

    >>> stable_top_k_mask(torch.tensor([1.0, 2.0, 1.0]), 2)
    tensor([ True,  True, False])
    """
    if not k:
        return torch.zeros_like(magnitudes, dtype=torch.bool)
    threshold = magnitudes.kthvalue(magnitudes.numel() - k + 1).values
    mask = magnitudes > threshold
    equal = (magnitudes == threshold).nonzero().flatten()
    mask[equal[: k - int(mask.sum())]] = True
    return mask


def smallest_k_indices(magnitudes: Tensor, k: int) -> Tensor:
    """Return the indices of exactly k smallest entries of a vector, smallest first, of equal ones the first.

    >>> smallest_k_indices(torch.tensor([1.0, 2.0, 1.0]), 2)
    tensor([0, 2])
    """
    return magnitudes.argsort(stable=True)[:k]


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
