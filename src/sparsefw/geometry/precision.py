"""The dtype in which regions and steps are computed."""

from __future__ import annotations

import torch

HALF = (torch.bfloat16, torch.float16)


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return float32 for half precisions, in which squares over- or underflow and steps of 1e-3 vanish; else the dtype itself."""
    if not dtype.is_floating_point:
        raise TypeError(f"regions are defined on real floating-point tensors, got {dtype}")
    return torch.float32 if dtype in HALF else dtype
