"""How good the vertices of a rank training are: <vertex, m> / <best vertex, m> of every layer, exactly, over a run.

    python benchmarks/oracle_quality.py digits-resnet-rank [--data DIR] [--set KEY=VALUE] [--every 50] [--json FILE]

Trains the recipe as `sparsefw train` does, but keeps nothing of it, and looks at the oracle's last answer every N steps.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any

from recipes import typed
from sparsefw.atomic_io import strict
from sparsefw.environment import environment
from sparsefw.train.display import Display
from sparsefw.train.loop import Training, Watcher, train
from sparsefw.train.recipes import load_recipe
from sparsefw.train.run import prepare


class Inspector(Watcher):
    """Layer -> its quality at every step that was looked at."""

    def __init__(self, every: int) -> None:
        self._every = every
        self.steps: list[int] = []
        self.quality: dict[str, list[float]] = {}

    def stepped(self, training: Training, lr: float) -> None:
        self._look(training)

    def epoch_ended(self, training: Training, lr: float, figures: dict[str, dict[str, float]]) -> None:
        self._look(training)
        loss, found = figures["train"]["loss"], self.overall()
        epochs = f"epoch {training.epoch}/{training.config.train.epochs}"
        print(f"{epochs}  loss {loss:.4f}  quality {found['mean']:.4f}, at least {found['min']:.4f}", file=sys.stderr)

    def overall(self) -> dict[str, Any]:
        return summary([value for values in self.quality.values() for value in values])

    def _look(self, training: Training) -> None:
        if training.step % self._every:
            return
        self.steps.append(training.step)
        for name, quality in training.optimizer.oracle_quality().items():
            self.quality.setdefault(name, []).append(quality)


def summary(values: list[float]) -> dict[str, Any]:
    """nan, where a gradient was 0, counts neither as good nor as bad."""
    known = [value for value in values if not math.isnan(value)]
    return {
        "mean": statistics.fmean(known) if known else math.nan,
        "min": min(known, default=math.nan),
        "looks": len(known),
    }


def inspected(recipe: str, data: Path | None, changes: list[str], every: int) -> dict[str, Any]:
    config = load_recipe(recipe, changes)
    training, inspector = prepare(config, data, Display(config.name, quiet=True)), Inspector(every)
    train(training, inspector)
    if not inspector.quality:
        raise SystemExit(
            f"{recipe}: nothing to look at in {training.step} steps; is a layer constrained, is --every less?"
        )
    return {
        "engine": str(training.engine),
        "method": config.method.model_dump(),
        "steps": training.step,
        "overall": inspector.overall(),
        "layers": {name: summary(values) for name, values in inspector.quality.items()},
        "looked_at": inspector.steps,
        "quality": inspector.quality,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", help="with its variant, such as digits-resnet-rank")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--set", action="append", default=[], dest="changes")
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found = inspected(args.recipe, args.data, args.changes, args.every)
    width = max(map(len, found["layers"]))
    print(f"{args.recipe}, {found['steps']} steps on {found['engine']}, looked at every {args.every}")
    print(f"{'layer':{width}}    mean     min")
    for name, row in (*found["layers"].items(), ("all", found["overall"])):
        print(f"{name:{width}}  {row['mean']:.4f}  {row['min']:.4f}")
    if args.json:
        options = [*(("--data", "DIR") if args.data else ()), *(w for c in args.changes for w in ("--set", c))]
        command = f"python benchmarks/oracle_quality.py {typed([args.recipe, *options, '--every', str(args.every)])}"
        args.json.write_text(json.dumps(strict({"command": command, **environment(), **found}), indent=1) + "\n")


if __name__ == "__main__":
    main()
