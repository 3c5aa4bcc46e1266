"""Run Triton kernels by its interpreter where there is no GPU: the variable must be set before Triton is imported."""

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
