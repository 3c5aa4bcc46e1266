"""Run Triton kernels by its interpreter where there is no GPU: the variable must be set before Triton is imported."""

from __future__ import annotations

import os

import torch

from faults.table import pytest_terminal_summary  # noqa: F401  (a hook, where pytest-xdist finds it)

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
