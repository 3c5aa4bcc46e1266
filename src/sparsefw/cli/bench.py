"""`sparsefw bench`: ratios measured in one run, by the steps and through the data path of `sparsefw train`."""

from __future__ import annotations

import gc
import math
import os
import statistics
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import torch

from sparsefw.cli.output import say
from sparsefw.cli.small import Outcome
from sparsefw.data.locate import VARIABLE
from sparsefw.data.noise import Noise
from sparsefw.environment import environment
from sparsefw.methods import METHODS, SGD, Batch, Method
from sparsefw.train.config import RunConfig
from sparsefw.train.display import Display
from sparsefw.train.engine import COMPILED_STEPS
from sparsefw.train.loop import Training, synchronise
from sparsefw.train.recipes import load_recipe, recipe_names
from sparsefw.train.run import prepare
from sparsefw.train.step import EAGER_STEPS
from sparsefw.typed import ConfigError
from sparsefw.words import did_you_mean

WARM_UP = EAGER_STEPS + 3  # captured steps: the capture itself and some replays
STRETCHES, LEAST = 10, 3  # how many fill the time, and how many there are where steps are slow
STEADY = 0.1  # how much SGD's speed may change during a measurement before it is said to be worth little
MADE_UP_BYTES, MADE_UP_BATCHES = 2**27, 4  # of made-up images, where that is more than so many batches


class Row(NamedTuple):
    """A row of the table: the recipe's sgd variant, trained by a form of a method."""

    method: type[Method]
    settings: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.method.model_fields["name"].default)

    @property
    def label(self) -> str:
        words = {"svd": "(full SVD)", "k": f"k={self.settings.get('k')}"}
        return " ".join([self.method.title, *(words.get(key, str(value)) for key, value in self.settings.items())])

    @property
    def changes(self) -> list[str]:
        return [f"method.{key}={value}" for key, value in {"name": self.name, **self.settings}.items()]


ROWS = {
    form or str(method.model_fields["name"].default): Row(method, settings)
    for method in sorted(METHODS.values(), key=lambda method: method is not SGD)  # which comes first
    for form, settings in method.forms.items()
}
USUAL = ("sgd", "filters", "weights", "rank-0.1", "rank-0.3", "nuc-svd")


class Measured(NamedTuple):
    """Seconds per step, one number for each stretch; the most memory that was allocated; what was chosen for the machine."""

    seconds: list[float]
    peak_bytes: int
    engine: str


def chosen_rows(text: str | None) -> list[str]:
    """ "filters,nuc" as keys of ROWS, in their order; SGD is always among them, since all others are compared with it."""
    wanted = (
        list(USUAL) if text is None else list(ROWS) if text == "all" else [name.strip() for name in text.split(",")]
    )
    for name in wanted:
        if name not in ROWS:
            raise ConfigError(f"--rows {name!r}{did_you_mean(name, ROWS)}; there are all, {', '.join(ROWS)}")
    return [name for name in ROWS if name in wanted or name == "sgd"]


def rates(stem: str, data: Path | None, seconds: float, changes: Sequence[str], rows: Sequence[str]) -> Outcome:
    """Images per second and memory of methods, as shares of SGD's."""
    if f"{stem}-sgd" not in recipe_names():
        raise ConfigError(
            f"bench {stem!r}: needs a recipe with an sgd variant, named without it, such as digits-resnet"
        )
    configs = {key: row_config(stem, ROWS[key], data, changes) for key in rows}
    found: dict[str, list[Measured]] = {key: [] for key in rows}
    for key in [*rows, "sgd"]:  # twice: a machine that slows down or speeds up meanwhile is noticed
        found[key].append(_measured(configs[key], data, seconds))
        say(f"{stem}, {ROWS[key].label}: {1e3 * statistics.median(found[key][-1].seconds):.2f} ms/step")
    table = {key: _row(key, configs[key], found[key]) for key in rows}
    for row in table.values():
        row["share"] = row["images_per_second"] / table["sgd"]["images_per_second"]
        row["memory_share"] = row["peak_bytes"] / table["sgd"]["peak_bytes"] if row["peak_bytes"] else None
    first, last = (statistics.median(one.seconds) for one in found["sgd"])
    batch, shape, made_up = configs["sgd"].data.batch_size, _shape(configs["sgd"]), configs["sgd"].data.name == "noise"
    origin = "made up in memory: no file is read or decoded" if made_up else "those of the data set"
    record = {
        "recipe": stem,
        "batch_size": batch,
        "shape": shape,
        "made_up": made_up,
        "images": f"batches of {batch} images of {' x '.join(map(str, shape))}, {origin}",
        "engine": table["sgd"]["engine"],
        "drift": last / first - 1,
        "rows": table,
        **environment(),
    }
    return Outcome(record, _text(record))


def row_config(stem: str, row: Row, data: Path | None, changes: Sequence[str]) -> RunConfig:
    """The training that a row measures; on made-up images where no data are given."""
    config = load_recipe(f"{stem}-sgd", [*row.changes, *changes])
    info = config.data.info()
    if info.make is not None or data is not None or os.environ.get(VARIABLE):
        return config
    if info.task != "classification" or info.classes is None:
        raise ConfigError(f"bench {stem!r}: images of {info.name} have labels that cannot be made up; give --data")
    batch, shape = config.data.batch_size, _shape(config)
    batches = max(MADE_UP_BATCHES, MADE_UP_BYTES // (batch * math.prod(shape)))
    noise = Noise(shape=shape, classes=info.classes, images=batch * batches)
    # In trainings as long as with all images of the real set, networks are compiled.
    epochs = max(config.train.epochs, math.ceil(COMPILED_STEPS / batches))
    made_up = config.data.model_copy(update={"name": "noise", "noise": noise, "validation": 0.0})
    return config.model_copy(update={"data": made_up, "train": config.train.model_copy(update={"epochs": epochs})})


def _shape(config: RunConfig) -> tuple[int, int, int]:
    """Channels, height and width of what the network gets."""
    channels, height, width = config.data.info().shape
    return (channels, *(config.data.size or (height, width)))


def _row(key: str, config: RunConfig, found: Sequence[Measured]) -> dict[str, Any]:
    times = [second for one in found for second in one.seconds]
    median = statistics.median(times)
    return {
        "label": ROWS[key].label,
        "looks": config.method.looks,
        "method": config.method.model_dump(),
        "engine": found[0].engine,
        "images_per_second": config.data.batch_size / median,
        "milliseconds": 1e3 * median,
        "spread": [min(times) / median, max(times) / median],
        "stretches": len(times),
        "peak_bytes": max(one.peak_bytes for one in found),
    }


def _text(record: dict[str, Any]) -> str:
    rows, on_gpu = record["rows"], bool(record["rows"]["sgd"]["peak_bytes"])
    width = max(len(row["label"]) for row in rows.values())
    lines = [
        f"{record['recipe']} on {record['engine']}",
        record["images"],
        f"{'':{width}}  images/s   share of SGD's   ms/step        spread" + "   peak MiB   x SGD's" * on_gpu,
    ]
    for row in rows.values():
        spread = "{:.3f}..{:.3f}".format(*row["spread"])
        memory = f"   {row['peak_bytes'] / 2**20:8,.0f}   {row['memory_share']:7.2f}" if on_gpu else ""
        rate = f"{row['images_per_second']:,.{0 if row['images_per_second'] >= 100 else 1}f}"
        lines.append(
            f"{row['label']:{width}}  {rate:>8}   {row['share']:14.3f}   {row['milliseconds']:7.2f}"
            f"  {spread:>12}{memory}"
        )
    lines.append(f"spread: fastest and slowest stretch over the median; {_drift(record)}")
    lines += [f"{row['label']} ran on {row['engine']}" for row in rows.values() if row["engine"] != record["engine"]]
    return "\n".join(lines)


def costs_text(record: dict[str, Any]) -> str:
    """The same measurements as what a step costs, in steps of SGD."""
    rows = record["rows"].items()
    width = max(len(row["label"]) for _, row in rows)
    return "\n".join(
        [
            f"{record['recipe']} on {record['engine']}",
            f"{'':{width}}  cost of a step, SGD's = 1",
            *(
                f"{row['label']:{width}}  {1 / row['share']:8.2f}{'   looks twice' * (row['looks'] == 2)}"
                for _, row in rows
            ),
            _drift(record),
        ]
    )


def _drift(record: dict[str, Any]) -> str:
    """Whether the machine was the same all the time."""
    busy = abs(record["drift"]) > STEADY
    said = f"SGD at the end against SGD at the start: {record['drift']:+.1%}"
    return said + "; this machine was busy, or changed its speed: measure again when it is idle" * busy


def _measured(config: RunConfig, data: Path | None, seconds: float) -> Measured:
    """One training, prepared, measured and forgotten: there are never two in memory."""
    gc.collect()
    before = 0
    if torch.cuda.is_available():
        torch._C._cuda_clearCublasWorkspaces()  # kept for every stream that a training before this one had
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    training = prepare(config, data, Display(config.name, quiet=True))
    times = _timed(training, seconds)
    on_gpu = training.engine.device.type == "cuda"
    return Measured(times, torch.cuda.max_memory_allocated() - before if on_gpu else 0, str(training.engine))


def _timed(t: Training, seconds: float) -> list[float]:
    """Seconds per step over stretches of steps, each waited for in the end; so many steps that STRETCHES fill the time."""
    t.model.train()
    with closing(batches_of(t)) as batches:

        def steps(count: int) -> float:
            synchronise(t.engine.device)
            start = time.perf_counter()
            for _ in range(count):
                t.rates.scale(1.0)
                t.sums += t.advance(next(batches))
            synchronise(t.engine.device)
            return (time.perf_counter() - start) / count

        if t.engine.cuda_graph:
            steps(WARM_UP)
        else:  # the optimizer alone has no need of more passes for its own warm-up, which may take seconds each
            steps(1)
            for _ in range(EAGER_STEPS):
                t.optimizer.step()
        count = max(1, int(seconds / STRETCHES / steps(1)))
        found: list[float] = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(found) < LEAST:
            found.append(steps(count))
        return found


def data_rate(recipe: str, data: Path | None, seconds: float, changes: Sequence[str]) -> Outcome:
    """What the data path delivers when nothing else runs."""
    training = prepare(load_recipe(recipe, changes), data, Display(recipe, quiet=True))
    t, count, batches = training, 0, batches_of(training)
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


def batches_of(t: Training) -> Generator[Batch]:
    """Training batches without end."""
    epoch = 0
    while True:
        yield from t.data.train.training(epoch, 0, t.config.data.batch_size)
        epoch += 1
