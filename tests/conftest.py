"""Before anything is imported: without a GPU, Triton's interpreter runs its kernels on the CPU, for tests that ask for them."""

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
