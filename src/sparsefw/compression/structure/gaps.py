"""Gaps: how far outputs are apart."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from sparsefw.compression.structure.channels import tensors_of


def in_double(example: Any) -> Any:
    """Return the example with its floating-point tensors in float64."""
    return tree_map(lambda t: t.double() if isinstance(t, Tensor) and t.is_floating_point() else t, example)


def relative_gap(expected: Any, got: Any, whole_numbers: bool = False) -> float:
    """Return max |got - expected| over all output tensors, each relative to the spread of its expected values.

    A common offset of all outputs hides nothing. Entries that are not finite must be equal. The gap is inf if there are more
    tensors on one side, if shapes differ, or if there is nothing to compare. Whole numbers, such as the index of a class, are
    equal by chance too often and are skipped; with `whole_numbers`, the share of them that differs counts.
    """
    worst = 0.0
    compared = False
    wanted, found = tensors_of(expected), tensors_of(got)
    if len(wanted) != len(found):
        return float("inf")
    for a, b in zip(wanted, found, strict=True):
        if a.shape != b.shape:
            return float("inf")
        if not (whole_numbers or a.is_floating_point() or a.is_complex()):
            continue
        gap = _gap_of_tensors(a.detach(), b.detach().to(a.device))
        if gap is not None:
            compared = True
            worst = max(worst, gap)
    return worst if compared else float("inf")


def _gap_of_tensors(a: Tensor, b: Tensor) -> float | None:
    """Return the gap of two tensors; None if they have no finite entries."""
    if not (a.is_floating_point() or a.is_complex()):
        return float((a != b).double().mean()) if a.numel() else None
    special = ~a.isfinite() | ~b.isfinite()
    if bool((special & (a != b) & ~(a.isnan() & b.isnan())).any()):
        return float("inf")
    exact = torch.complex128 if a.is_complex() else torch.float64
    finite = a[~special].to(exact)
    other = b[~special].to(exact)
    if not finite.numel():
        return None
    largest = finite.abs().max()
    spread = (finite - finite[0]).abs().max()
    # Values that differ by rounding only have no spread to measure by.
    rounding = 1e3 * torch.finfo(a.dtype).eps
    scale = torch.where(spread > rounding * largest, spread, largest)
    return float((finite - other).abs().max() / scale.clamp(min=1e-12))
