"""Measure how many images per second are loaded when nothing else runs."""

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
BATCHES_PER_SYNC = 10  # batches after which the host waits for the device


class DataSpeed(NamedTuple):
    """Images per second, and the engine that was chosen for this machine."""

    images_per_second: float
    engine: str


def measure_data_speed(
    recipe: str, data: Path | None, seconds: float, changes: Sequence[str], trust: bool = False
) -> DataSpeed:
    """Count the augmented images that reach the device, without a network.

    Args:
        recipe: whose data are loaded.
        data: the folder with the files; None: the environment variable SPARSEFW_DATA.
        seconds: how long to measure.
        changes: of the recipe, such as "data.batch_size=64".
        trust: whether Python code that the recipe names may be imported, which runs it.
    """
    training = prepare(load_recipe(recipe, changes), data, Display(recipe, quiet=True), trust)
    batches = endless_batches(training)
    for _ in range(WARM_UP_BATCHES):
        next(batches)
    synchronise(training.engine.device)
    images = 0
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        for _ in range(BATCHES_PER_SYNC):
            images += len(next(batches).targets)
        synchronise(training.engine.device)
    return DataSpeed(images / (time.perf_counter() - start), str(training.engine))
