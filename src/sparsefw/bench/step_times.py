"""Times the steps of one training, which are those of `sparsefw train`: same data path, same engine."""

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
from sparsefw.train.loop import Training, synchronise
from sparsefw.train.run import prepare
from sparsefw.train.step import EAGER_STEPS

WARM_UP_STEPS = EAGER_STEPS + 3  # captured steps: the capture itself and some replays
USUAL_STRETCHES = 10  # how many fill the time
LEAST_STRETCHES = 3  # how many there are where steps are slow


class StepTimes(NamedTuple):
    """Seconds per step, one number for each stretch; the most memory that was allocated; what was chosen for the machine."""

    seconds: list[float]
    peak_bytes: int
    engine: str


def time_training(config: RunConfig, data: Path | None, seconds: float) -> StepTimes:
    """Prepare one training, time its steps and forget it: there are never two in memory."""
    gc.collect()
    before = 0
    if torch.cuda.is_available():
        torch._C._cuda_clearCublasWorkspaces()  # kept for every stream that a training before this one had
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    training = prepare(config, data, Display(config.name, quiet=True))
    times = _time_stretches(training, seconds)
    on_gpu = training.engine.device.type == "cuda"
    return StepTimes(times, torch.cuda.max_memory_allocated() - before if on_gpu else 0, str(training.engine))


def _time_stretches(training: Training, seconds: float) -> list[float]:
    """Take the seconds per step over stretches of steps, each so long that USUAL_STRETCHES of them fill the time."""
    training.model.train()
    with closing(endless_batches(training)) as batches:

        def seconds_per_step(count: int) -> float:
            synchronise(training.engine.device)
            start = time.perf_counter()
            for _ in range(count):
                training.rates.scale(1.0)
                training.sums += training.advance(next(batches))
            synchronise(training.engine.device)
            return (time.perf_counter() - start) / count

        if training.engine.cuda_graph:
            seconds_per_step(WARM_UP_STEPS)
        else:  # the optimizer alone has no need of more passes for its own warm-up, which may take seconds each
            seconds_per_step(1)
            for _ in range(EAGER_STEPS):
                training.optimizer.step()
        count = max(1, int(seconds / USUAL_STRETCHES / seconds_per_step(1)))
        found: list[float] = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(found) < LEAST_STRETCHES:
            found.append(seconds_per_step(count))
        return found


def endless_batches(training: Training) -> Generator[Batch]:
    """Yield training batches, epoch after epoch without end."""
    epoch = 0
    while True:
        yield from training.data.train.training(epoch, 0, training.config.data.batch_size)
        epoch += 1
