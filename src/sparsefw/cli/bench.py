"""`sparsefw bench`: ratios measured in one run, through the real data path."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from sparsefw.cli.small import Outcome
from sparsefw.environment import environment
from sparsefw.methods import Batch
from sparsefw.train.config import RunConfig
from sparsefw.train.display import Display
from sparsefw.train.loop import Training, synchronise
from sparsefw.train.recipes import load_recipe, recipe_names
from sparsefw.train.run import prepare
from sparsefw.train.step import EAGER_STEPS
from sparsefw.typed import ConfigError

WARM_UP = EAGER_STEPS + 12  # steps


def rates(stem: str, data: Path | None, seconds: float, changes: Sequence[str]) -> Outcome:
    """Images per second of every variant of a recipe."""
    variants = [name for name in recipe_names() if name.startswith(f"{stem}-")]
    if f"{stem}-sgd" not in variants:
        raise ConfigError(
            f"bench train {stem!r}: needs a recipe with an sgd variant, named without it, such as digits-resnet"
        )
    variants.sort(key=lambda name: name != f"{stem}-sgd")
    # A function for each, so that one training is in memory at a time.
    rows = {name: _row(load_recipe(name, changes), data, seconds) for name in variants}
    engines = [row.pop("engine") for row in rows.values()]
    first = rows[variants[0]]["images_per_second"]
    width = max(map(len, rows))
    lines = [f"{'':{width}}  images/s   share of SGD   ms/step" + "   peak MiB" * torch.cuda.is_available()]
    for name, row in rows.items():
        row["share"] = row["images_per_second"] / first
        memory = f"   {row['peak_bytes'] / 2**20:8,.0f}" if row["peak_bytes"] else ""
        lines.append(
            f"{name:{width}}  {row['images_per_second']:8,.0f}   {row['share']:12.3f}   {row['milliseconds']:7.2f}{memory}"
        )
    return Outcome({"rows": rows, "engine": engines[0], **environment()}, "\n".join([engines[0], *lines]))


def _row(config: RunConfig, data: Path | None, seconds: float) -> dict[str, Any]:
    training = prepare(config, data, Display(config.name, quiet=True))
    return {**_measured(training, seconds), "engine": str(training.engine)}


def data_rate(recipe: str, data: Path | None, seconds: float, changes: Sequence[str]) -> Outcome:
    """What the data path delivers when nothing else runs."""
    training = prepare(load_recipe(recipe, changes), data, Display(recipe, quiet=True))
    t, count, batches = training, 0, _batches(training)
    for _ in range(5):
        next(batches)
    synchronise(t.engine.device)
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        for _ in range(10):
            count += len(next(batches).targets)
        synchronise(t.engine.device)
    rate = count / (time.perf_counter() - start)
    return Outcome({"images_per_second": rate, **environment()}, f"{recipe}: {rate:,.0f} images/s on {t.engine}")


def _batches(t: Training) -> Iterator[Batch]:
    epoch = 0
    while True:
        yield from t.data.train.training(epoch, 0, t.config.data.batch_size)
        epoch += 1


def _measured(t: Training, seconds: float) -> dict[str, Any]:
    """The median over several stretches, each waited for in the end."""
    t.model.train()
    on_gpu, batches, batch = t.engine.device.type == "cuda", _batches(t), t.config.data.batch_size
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    for _ in range(WARM_UP):
        t.rates.scale(1.0)
        t.advance(next(batches))
    found: list[float] = []
    end = time.perf_counter() + seconds
    steps = 50 if on_gpu else 3
    while time.perf_counter() < end or len(found) < 3:
        synchronise(t.engine.device)
        start = time.perf_counter()
        for _ in range(steps):
            t.rates.scale(1.0)
            t.sums += t.advance(next(batches))
        synchronise(t.engine.device)
        found.append((time.perf_counter() - start) / steps)
    median = sorted(found)[len(found) // 2]
    peak = torch.cuda.max_memory_allocated() if on_gpu else 0
    return {
        "images_per_second": batch / median,
        "milliseconds": 1e3 * median,
        "stretches": len(found),
        "peak_bytes": peak,
    }
