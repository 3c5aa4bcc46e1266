"""Trains variants of a recipe and measures their curves, all by `sparsefw` commands, and records commands and figures.

    python benchmarks/recipe_curves.py cifar10-resnet18 --data DIR --variants sgd filters rank --set data.validation=0 --json FILE

Run folders are under runs/. Finished trainings are not repeated, and killed ones continue.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from shared import run_sparsefw, write_record
from sparsefw.environment import environment

# Variant -> kind and form of its curves.
CURVES = {
    "sgd": [("filters", "masked"), ("filters", "removed"), ("rank", "removed")],
    "filters": [("filters", "masked"), ("filters", "removed")],
    "rank": [("rank", "removed")],
    "weights": [("weights", "removed")],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", help="without its variant")
    parser.add_argument("--data", required=True)
    parser.add_argument("--variants", nargs="+", choices=list(CURVES), default=list(CURVES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--set", action="append", default=[], dest="changes")
    parser.add_argument("--curve", action="append", default=[], help="a further argument of `sparsefw curve`")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    changes = [word for change in args.changes for word in ("--set", change)]
    commands: list[dict[str, Any]] = []
    for seed in args.seeds:
        for variant in args.variants:
            run = f"runs/{args.recipe}-{variant}-seed{seed}"
            words = ["train", f"{args.recipe}-{variant}", "--data", args.data, "--out", run, "--seed", str(seed)]
            trained = run_sparsefw(*words, *changes, "--quiet")
            commands.append(trained._asdict())
            print(
                f"          {trained.answer['test']}, {trained.answer['images_per_second']:,.0f} images/s", flush=True
            )
            for kind, form in CURVES[variant]:
                words = ["curve", run, "--data", args.data, "--kind", kind, "--form", form, *args.curve]
                curve = run_sparsefw(*words, "--quiet")
                commands.append(curve._asdict())
                points = [f"{p['ratio']:.2f}: {p['plain']:.2f} / {p['refit']:.2f}" for p in curve.answer["points"]]
                print(f"          plain / refit  {',  '.join(points)}", flush=True)
            if args.json:
                write_record(args.json, {**environment(), "commands": commands})


if __name__ == "__main__":
    main()
