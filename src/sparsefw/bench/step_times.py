"""Measure the time of the steps of one training, with the data path and the engine of `sparsefw train`."""

from __future__ import annotations

import gc
import time
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import torch

from sparsefw.methods import Batch
from sparsefw.train.config import RunConfig
from sparsefw.train.display import Display
from sparsefw.train.loop import Training, one_step, synchronise
from sparsefw.train.run import prepare
from sparsefw.train.step import EAGER_STEPS

WARM_UP_STEPS = EAGER_STEPS + 3  # the steps before the capture, the capture itself, and some replays
USUAL_STRETCHES = 10  # that fill the time
MIN_STRETCHES = 3  # where steps are slow


class StepTimes(NamedTuple):
    """The measurement of one training.

    seconds       per step, one number for each stretch of steps
    peak_bytes    the most memory that was allocated on the GPU
    engine        the one that was chosen for this machine
    """

    seconds: list[float]
    peak_bytes: int
    engine: str


def time_training(config: RunConfig, data: Path | None, seconds: float, trust: bool = False) -> StepTimes:
    """Prepare one training, measure its steps and free it: there are never two in memory.

    trust: whether Python code that the configuration names may be imported, which runs it.
    """
    gc.collect()
    bytes_before = 0
    if torch.cuda.is_available():
        torch._C._cuda_clearCublasWorkspaces()  # torch keeps one for every stream of previous trainings
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        bytes_before = torch.cuda.memory_allocated()
    training = prepare(config, data, Display(config.name, quiet=True), trust)
    times = _time_stretches(training, seconds)
    on_gpu = training.engine.device.type == "cuda"
    peak_bytes = torch.cuda.max_memory_allocated() - bytes_before if on_gpu else 0
    return StepTimes(times, peak_bytes, str(training.engine))


def _time_stretches(training: Training, seconds: float) -> list[float]:
    """Return seconds per step over stretches of equal length, about USUAL_STRETCHES of which fill the time."""
    training.model.train()
    with closing(endless_batches(training)) as batches:

        def seconds_per_step(count: int) -> float:
            synchronise(training.engine.device)
            start = time.perf_counter()
            for _ in range(count):
                one_step(training, next(batches), 1.0)
            synchronise(training.engine.device)
            return (time.perf_counter() - start) / count

        if training.engine.cuda_graph:
            seconds_per_step(WARM_UP_STEPS)
        else:  # warm up the optimizer alone: a pass through the network may take seconds
            seconds_per_step(1)
            for _ in range(EAGER_STEPS):
                training.optimizer.step()
        count = max(1, int(seconds / USUAL_STRETCHES / seconds_per_step(1)))
        stretches: list[float] = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(stretches) < MIN_STRETCHES:
            stretches.append(seconds_per_step(count))
        return stretches


def endless_batches(training: Training) -> Generator[Batch]:
    """Yield training batches without end, epoch after epoch."""
    epoch = 0
    while True:
        yield from training.data.train.training(epoch, 0, training.config.data.batch_size)
        epoch += 1
