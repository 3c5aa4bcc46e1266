"""What processes share with those that they start: a child holds none of our locks, and does not outlive us."""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress
from typing import IO, Any
from weakref import WeakSet

_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG, from Linux's prctl.h
_kept: WeakSet[IO[Any]] = WeakSet()


def keep_from_children(file: IO[Any]) -> None:
    """Close the file in every process that this one forks from now on.

    A lock lasts until the last copy of its file is closed: without this, the readers of a killed training would hold its lock.
    """
    _kept.add(file)


def _close_kept() -> None:
    for file in list(_kept):
        file.close()
    _kept.clear()


os.register_at_fork(after_in_child=_close_kept)


def end_with_parent(number: int = signal.SIGKILL) -> None:
    """In a child, ask the kernel for a signal when the parent ends, also by a kill; does nothing on systems without that."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, number)
