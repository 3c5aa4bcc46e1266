"""Euclidean projections of non-negative vectors onto the balls of the gauges.

Every function maps w >= 0 of shape (..., n) to ``argmin_x ||x - w||  s.t.  norm(x) <= radius`` with x >= 0, for
``radius`` of shape (..., 1). A gauge only looks at magnitudes, so the projection of a signed vector, of groups or of a
matrix is the projection of its magnitudes, lifted back by the view.

Multipliers are found by bisection: it needs no tolerance, cannot diverge, and each halving is one cheap vector operation.
Projections are for users and tests; training never calls them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# float64 has 52 bits of mantissa: more halvings of a bracket change nothing.
_HALVINGS = 60


def bisect(increasing: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> Tensor:
    """Return the point where `increasing` turns from negative to positive, elementwise between `low` and `high`."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        left = increasing(middle) < 0
        low, high = torch.where(left, middle, low), torch.where(left, high, middle)
    return (low + high) / 2


def onto_simplex(w: Tensor, radius: Tensor) -> Tensor:
    """argmin ||x - w|| over x >= 0 with sum(x) = radius; w may have any sign.

    >>> onto_simplex(torch.tensor([2.0, 1.0, -1.0]), torch.tensor([1.0]))
    tensor([1., 0., 0.])
    """
    ordered = w.sort(dim=-1, descending=True).values
    counts = torch.arange(1, w.shape[-1] + 1, dtype=w.dtype, device=w.device)
    shifts = (ordered.cumsum(-1) - radius) / counts
    active = (ordered > shifts).sum(-1, keepdim=True).clamp(min=1)
    return (w - shifts.gather(-1, active - 1)).clamp(min=0)


def onto_l1(w: Tensor, radius: Tensor) -> Tensor:
    """argmin ||x - w|| over sum(x) <= radius."""
    return torch.where(w.sum(-1, keepdim=True) <= radius, w, onto_simplex(w, radius))


def onto_l2(w: Tensor, radius: Tensor) -> Tensor:
    """argmin ||x - w|| over ||x|| <= radius."""
    length = torch.linalg.vector_norm(w, dim=-1, keepdim=True)
    return torch.where(length <= radius, w, w * (radius / length))


def onto_lp(w: Tensor, radius: Tensor, p: float) -> Tensor:
    """argmin ||x - w|| over sum(x^p) <= radius^p, by bisection: first for the multiplier c >= 0, then for each entry.

    Each entry solves x + c p x^(p-1) = w. Entries are divided by the radius first, so that powers neither over- nor underflow for
    moderate p.
    """
    scaled = w / radius

    def entries(c: Tensor) -> Tensor:
        return bisect(lambda x: x + c * p * x ** (p - 1) - scaled, torch.zeros_like(scaled), scaled)

    def shortfall(c: Tensor) -> Tensor:
        return 1 - entries(c).pow(p).sum(-1, keepdim=True)

    high = torch.ones_like(radius)
    while bool((shortfall(high) < 0).any()):
        high = high * 4
    inside = scaled.pow(p).sum(-1, keepdim=True) <= 1
    return torch.where(inside, w, radius * entries(bisect(shortfall, torch.zeros_like(high), high)))


def onto_k_sparse(w: Tensor, radius: Tensor, k: int) -> Tensor:
    """argmin ||x - w|| over the box [0, radius]^n with sum(x) <= k radius: soft cut, then clip."""

    def cut(c: Tensor) -> Tensor:
        return (w - c).clamp(min=0).minimum(radius)

    def shortfall(c: Tensor) -> Tensor:
        return k * radius - cut(c).sum(-1, keepdim=True)

    c = bisect(shortfall, torch.zeros_like(radius), w.amax(-1, keepdim=True))
    return torch.where(w.minimum(radius).sum(-1, keepdim=True) <= k * radius, w.minimum(radius), cut(c))


def onto_k_support(w: Tensor, radius: Tensor, k: int, norm: Callable[[Tensor], Tensor]) -> Tensor:
    """argmin ||x - w|| over norm(x) <= radius, for blocks (..., blocks, size) with budget k each; `norm` is their joint norm.

    The proximal map of (c/2) norm^2, with the multiplier c > 0 that reaches the radius. In each block the weights are
    ``t_i = clip(a w_i - c, 0, 1)`` with sum(t) = k, and ``x_i = t_i w_i / (t_i + c)``: the largest entries (t = 1) are
    divided by 1 + c, the middle ones shifted down by c/a, the rest are cut. With the entries sorted, sums over the top
    and the middle are differences of prefix sums, so that a bisection step costs O(log n) per block.
    """
    limit = radius.unsqueeze(-1)  # (..., 1, 1): one multiplier for all blocks
    ordered = w.sort(dim=-1, descending=True).values
    sums = torch.nn.functional.pad(ordered.cumsum(-1), (1, 0))
    squares = torch.nn.functional.pad(ordered.square().cumsum(-1), (1, 0))
    ascending = ordered.flip(-1).contiguous()
    size = w.shape[-1]

    def count_at_least(threshold: Tensor, *, strictly: bool) -> Tensor:
        return size - torch.searchsorted(ascending, threshold.contiguous(), right=strictly)

    def pieces(a: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        return count_at_least((1 + c) / a, strictly=False), count_at_least(c / a, strictly=True)

    def slope(c: Tensor) -> Tensor:
        """Return the a at which each block's weights sum to k, or are all 1 where fewer than k entries are nonzero."""

        def excess(log_a: Tensor) -> Tensor:
            a = log_a.exp()
            top, reached = pieces(a, c)
            middle = a * (sums.gather(-1, reached) - sums.gather(-1, top)) - (reached - top) * c
            return top + middle - k

        largest = ordered[..., :1]
        smallest = torch.where(w > 0, w, largest).amin(-1, keepdim=True)
        floor = torch.finfo(w.dtype).tiny ** 0.5  # an all-zero block keeps a finite, harmless slope
        low = (c / largest.clamp(min=floor)).clamp(min=floor).log()
        return bisect(excess, low, ((1 + c) / smallest.clamp(min=floor)).log() + 1e-12).exp()

    def joint(c: Tensor) -> Tensor:
        a = slope(c)
        top, reached = pieces(a, c)
        middle = (sums.gather(-1, reached) - sums.gather(-1, top) - (reached - top) * c / a) / a
        return (squares.gather(-1, top) / (1 + c).square() + middle).sum(-2, keepdim=True)

    outside = norm(w) > radius.squeeze(-1)
    if not bool(outside.any()):
        return w
    # From 0 as a competitor: c/2 norm(x)^2 <= 1/2 ||w||^2, so beyond ||w||^2 / radius^2 the norm is below the radius.
    high = w.square().sum((-2, -1), keepdim=True) / limit.square()
    # Bisect the logarithm: c grows with the square of the distance, and x depends on c / (1 + c).
    high = high.clamp(min=torch.finfo(w.dtype).tiny ** 0.5)
    c = bisect(lambda log_c: limit.square() - joint(log_c.exp()), high.log() - 70, high.log()).exp()
    a = slope(c)
    t = (a * w - c).clamp(0, 1)
    x = torch.where(t > 0, t * w / (t + c), torch.zeros_like(w))
    return torch.where(outside[..., None, None], x, w)
