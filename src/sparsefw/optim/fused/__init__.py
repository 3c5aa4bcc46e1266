"""The same step in a handful of launches for all layers, by Triton kernels, whose modules are imported for a fused step only."""

from __future__ import annotations

import functools
import importlib.util
import os

import torch


@functools.cache
def available(device: torch.device) -> bool:
    """Whether kernels can run there: on NVIDIA GPUs since Ampere, and by Triton's interpreter, slowly, where asked for."""
    if importlib.util.find_spec("triton") is None:
        return False
    if device.type == "cuda":
        return torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0)
    return device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
