"""Measures the quality of the vertices of a rank training: <vertex, m> / <best vertex, m> of every layer, computed exactly.

    python benchmarks/oracle_quality.py digits-resnet-rank [--data DIR] [--set KEY=VALUE] [--every 50] [--json FILE]

Trains the recipe as `sparsefw train` does, but writes no run folder, and measures the last vertex of every layer every N steps.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from pathlib import Path
from typing import Any

from shared import reproducible_arguments, write_record
from sparsefw.environment import environment
from sparsefw.runfolder.schema import EpochFigures
from sparsefw.train.display import Display
from sparsefw.train.loop import Training, Watcher, train
from sparsefw.train.recipes import load_recipe
from sparsefw.train.run import prepare


class QualityWatcher(Watcher):
    """Collects the quality of every layer at regular intervals."""

    def __init__(self, every: int) -> None:
        self._every = every
        self.steps: list[int] = []
        self.quality: dict[str, list[float]] = {}

    def stepped(self, training: Training, lr: float) -> None:
        self._measure(training)

    def epoch_ended(self, training: Training, lr: float, figures: EpochFigures) -> None:
        self._measure(training)
        epochs = f"epoch {training.epoch}/{training.config.train.epochs}"
        quality = self.overall()
        print(
            f"{epochs}  loss {figures.train['loss']:.4f}  quality {quality['mean']:.4f}, at least {quality['min']:.4f}",
            file=sys.stderr,
        )

    def overall(self) -> dict[str, Any]:
        return summarize([value for values in self.quality.values() for value in values])

    def _measure(self, training: Training) -> None:
        if training.step % self._every:
            return
        self.steps.append(training.step)
        for name, quality in training.optimizer.oracle_quality().items():
            self.quality.setdefault(name, []).append(quality)


def summarize(values: list[float]) -> dict[str, Any]:
    """Return mean, minimum and count of the known values; the quality of a zero gradient is nan."""
    known = [value for value in values if not math.isnan(value)]
    return {
        "mean": statistics.fmean(known) if known else math.nan,
        "min": min(known, default=math.nan),
        "looks": len(known),
    }


def measure_quality(recipe: str, data: Path | None, changes: list[str], every: int) -> dict[str, Any]:
    """Train a recipe, and return the quality of its vertices."""
    config = load_recipe(recipe, changes)
    training = prepare(config, data, Display(config.name, quiet=True))
    watcher = QualityWatcher(every)
    train(training, watcher)
    if not watcher.quality:
        raise SystemExit(
            f"{recipe}: nothing was measured in {training.step} steps; must have a constrained layer, and --every no larger"
        )
    return {
        "engine": str(training.engine),
        "method": config.method.model_dump(),
        "steps": training.step,
        "overall": watcher.overall(),
        "layers": {name: summarize(values) for name, values in watcher.quality.items()},
        "looked_at": watcher.steps,
        "quality": watcher.quality,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", help="with its variant, such as digits-resnet-rank")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--set", action="append", default=[], dest="changes")
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    quality = measure_quality(args.recipe, args.data, args.changes, args.every)
    width = max(map(len, quality["layers"]))
    print(f"{args.recipe}, {quality['steps']} steps on {quality['engine']}, measured every {args.every}")
    print(f"{'layer':{width}}    mean     min")
    for name, row in (*quality["layers"].items(), ("all", quality["overall"])):
        print(f"{name:{width}}  {row['mean']:.4f}  {row['min']:.4f}")
    if args.json:
        words = [args.recipe, *(["--data", str(args.data)] if args.data else [])]
        words += [word for change in args.changes for word in ("--set", change)]
        words += ["--every", str(args.every)]
        command = f"python benchmarks/oracle_quality.py {reproducible_arguments(words)}"
        write_record(args.json, {"command": command, **environment(), **quality})


if __name__ == "__main__":
    main()
