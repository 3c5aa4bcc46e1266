"""Which dtype to compute in."""

from __future__ import annotations

import torch

HALF = (torch.bfloat16, torch.float16)


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """float32 for half precisions, where squares over- or underflow and steps of 1e-3 vanish in the rounding."""
    if not dtype.is_floating_point:
        raise TypeError(f"regions are defined on real floating-point tensors, got {dtype}")
    return torch.float32 if dtype in HALF else dtype
