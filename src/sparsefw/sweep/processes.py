"""Worker processes: how many there are, their share of the cores, and the signals that ask a process to stop."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import torch

from sparsefw.environment import usable_cores


def default_workers() -> int:
    """Return one worker per GPU, or one per core where there is no GPU."""
    return torch.cuda.device_count() or usable_cores()


def thread_variables(workers: int) -> dict[str, str]:
    """Return the environment variables that give each of several worker processes its share of the cores.

    OMP_WAIT_POLICY=PASSIVE makes waiting threads sleep. By default they spin, which on a busy machine takes the core from the
    very thread that they wait for: a training of seconds then takes minutes.
    """
    return {"OMP_NUM_THREADS": str(max(1, usable_cores() // workers)), "OMP_WAIT_POLICY": "PASSIVE"}


@contextmanager
def stop_signals_handled(handle: Callable[[str], None]) -> Iterator[None]:
    """Call `handle` with the name of every SIGINT and SIGTERM that arrives while the block runs."""

    def handle_signal(number: int, frame: FrameType | None) -> None:
        handle(signal.Signals(number).name)

    previous = {number: signal.signal(number, handle_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def stop_signals_collected() -> Iterator[list[str]]:
    """Collect the names of the SIGINTs and SIGTERMs that arrive while the block runs."""
    names: list[str] = []
    with stop_signals_handled(names.append):
        yield names
