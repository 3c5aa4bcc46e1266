"""Versions, hardware and date of a measurement."""

from __future__ import annotations

import datetime
import os
import platform
import re
from pathlib import Path
from typing import Any

import torch


def environment() -> dict[str, Any]:
    """Return versions, hardware and date: the record that is written beside every figure and every artifact."""
    from sparsefw import __version__

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "versions": {"sparsefw": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "hardware": {"cpu": _cpu_name(), "system": platform.system(), "cpus": os.cpu_count(), "gpu": gpu},
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
    }


def usable_cores() -> int:
    """Return the number of cores that this process may use, which taskset, Slurm and containers reduce."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def device_name(device: torch.device | str) -> str:
    """Return the name of a GPU, or the model of the CPU with the number of threads that torch uses."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{_cpu_name()}, {torch.get_num_threads()} threads"


def _cpu_name() -> str:
    try:  # platform.processor() is empty or just the architecture on most Linux systems
        model = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        model = None
    return model[1].strip() if model else platform.processor() or platform.machine()
