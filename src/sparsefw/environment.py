"""What a figure was measured on, and when."""

from __future__ import annotations

import datetime
import os
import platform
import re
from pathlib import Path
from typing import Any

import torch


def environment() -> dict[str, Any]:
    """Versions, hardware and date: written beside every figure and every artifact."""
    from sparsefw import __version__

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "versions": {"sparsefw": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "hardware": {"cpu": _cpu(), "system": platform.system(), "cpus": os.cpu_count(), "gpu": gpu},
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
    }


def cores() -> int:
    """Those that this process may use: fewer than there are, under taskset, Slurm and in containers."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def device_name(device: torch.device | str) -> str:
    """The GPU's name; for the CPU its model and the threads torch uses."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{_cpu()}, {torch.get_num_threads()} threads"


def _cpu() -> str:
    try:  # platform.processor() is empty or just the architecture on most Linux systems
        named = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        named = None
    return named[1].strip() if named else platform.processor() or platform.machine()
