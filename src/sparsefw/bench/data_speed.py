"""Measures what the data path delivers when nothing else runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sparsefw.bench.step_times import endless_batches
from sparsefw.train.display import Display
from sparsefw.train.loop import synchronise
from sparsefw.train.recipes import load_recipe
from sparsefw.train.run import prepare

WARM_UP_BATCHES = 5
BATCHES_AT_ONCE = 10  # that the device is waited for once


class DataSpeed(NamedTuple):
    """Images per second, and what was chosen for the machine."""

    images_per_second: float
    engine: str


def measure_data_speed(recipe: str, data: Path | None, seconds: float, changes: Sequence[str]) -> DataSpeed:
    """Count the images that reach the device, augmented, without a network."""
    training = prepare(load_recipe(recipe, changes), data, Display(recipe, quiet=True))
    batches = endless_batches(training)
    for _ in range(WARM_UP_BATCHES):
        next(batches)
    synchronise(training.engine.device)
    images = 0
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        for _ in range(BATCHES_AT_ONCE):
            images += len(next(batches).targets)
        synchronise(training.engine.device)
    return DataSpeed(images / (time.perf_counter() - start), str(training.engine))
