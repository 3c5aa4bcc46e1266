"""Measure the training speed of methods, relative to that of SGD in the same run."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparsefw.bench.method_rows import BASELINE_ROW, ROWS, image_shape, row_config
from sparsefw.bench.step_times import StepTimes, time_training
from sparsefw.config_base import ConfigError
from sparsefw.environment import environment
from sparsefw.train.config import RunConfig
from sparsefw.train.recipes import baseline_of, recipe_descriptions

STEADY = 0.1  # the largest change of the speed of SGD during a measurement that can be trusted


def measure_training_speed(
    stem: str, data: Path | None, seconds: float, changes: Sequence[str], rows: Sequence[str], trust: bool = False
) -> dict[str, Any]:
    """Measure images per second and memory of methods, relative to those of SGD.

    Args:
        stem: the name of a recipe without its variant, such as "digits-resnet".
        data: the folder with the data set; None: the environment variable SPARSEFW_DATA, or else random images.
        seconds: how long to measure each row.
        changes: of the recipe, such as "data.batch_size=64".
        rows: keys of ROWS, among them BASELINE_ROW.
        trust: whether Python code that the changes name may be imported, which runs it.

    Returns:
        A record that can be written as JSON: the rows of the table, and recipe, images, engine, hardware, versions and date.
    """
    if baseline_of(stem) not in recipe_descriptions():
        raise ConfigError(
            f"bench {stem!r}: needs a recipe with an sgd variant, named without it, such as digits-resnet"
        )
    configs = {key: row_config(stem, ROWS[key], data, changes) for key in rows}
    measured: dict[str, list[StepTimes]] = {key: [] for key in rows}
    for key in [*rows, BASELINE_ROW]:  # SGD twice, to notice a machine that changes its speed
        times = time_training(configs[key], data, seconds, trust)
        measured[key].append(times)
        median = 1e3 * statistics.median(times.seconds)
        print(f"{stem}, {ROWS[key].label}: {median:.2f} ms/step", file=sys.stderr, flush=True)
    table = {key: _table_row(key, configs[key], measured[key]) for key in rows}
    baseline = table[BASELINE_ROW]
    for row in table.values():
        row["share"] = row["images_per_second"] / baseline["images_per_second"]
        row["memory_share"] = row["peak_bytes"] / baseline["peak_bytes"] if row["peak_bytes"] else None
    first, last = (statistics.median(times.seconds) for times in measured[BASELINE_ROW])
    return {
        "recipe": stem,
        **_image_facts(configs[BASELINE_ROW]),
        "engine": baseline["engine"],
        "drift": last / first - 1,
        "rows": table,
        **environment(),
    }


def _image_facts(config: RunConfig) -> dict[str, Any]:
    batch = config.data.batch_size
    shape = image_shape(config)
    made_up = config.data.name == "noise"
    origin = "made up in memory: no file is read or decoded" if made_up else "those of the data set"
    return {
        "batch_size": batch,
        "shape": shape,
        "made_up": made_up,
        "images": f"batches of {batch} images of {' x '.join(map(str, shape))}, {origin}",
    }


def _table_row(key: str, config: RunConfig, measured: Sequence[StepTimes]) -> dict[str, Any]:
    seconds = [second for times in measured for second in times.seconds]
    median = statistics.median(seconds)
    return {
        "label": ROWS[key].label,
        "passes": config.method.passes,
        "method": config.method.model_dump(),
        "engine": measured[0].engine,
        "images_per_second": config.data.batch_size / median,
        "milliseconds": 1e3 * median,
        "spread": [min(seconds) / median, max(seconds) / median],
        "stretches": len(seconds),
        "peak_bytes": max(times.peak_bytes for times in measured),
    }
