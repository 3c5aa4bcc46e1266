"""The step of all layers in a handful of launches, by Triton kernels. Only a fused step imports their modules."""

from __future__ import annotations

import functools
import importlib.util
import os

import torch


@functools.cache
def available(device: torch.device) -> bool:
    """Whether kernels can run on this device: on NVIDIA GPUs since Ampere; on CPUs, slowly, with TRITON_INTERPRET=1."""
    if importlib.util.find_spec("triton") is None:
        return False
    if device.type == "cuda":
        return torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0)
    return device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
