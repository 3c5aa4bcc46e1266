"""Train variants of a recipe and draw their curves, all through the command line, and keep commands and figures in one file.

    python benchmarks/recipes.py cifar10-resnet18 --data DIR --variants sgd filters rank --set data.validation=0 --json FILE

Run folders lie under runs/; what is finished there is not trained again, and what was killed goes on.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparsefw.environment import environment

# What is removed from a network that was trained as this variant.
CURVES = {
    "sgd": [("filters", "masked"), ("filters", "removed"), ("rank", "removed")],
    "filters": [("filters", "masked"), ("filters", "removed")],
    "rank": [("rank", "removed")],
    "weights": [("weights", "removed")],
}


def sparsefw(*arguments: str) -> dict[str, Any]:
    """One command: what was typed, what it answered, how long it took."""
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "sparsefw", *arguments, "--json"], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"sparsefw {shlex.join(arguments)} ended with exit code {done.returncode}")
    seconds = time.perf_counter() - start
    command = f"sparsefw {typed(arguments)}"
    print(f"{seconds:6.0f} s  {command}", flush=True)
    return {"command": command, "seconds": seconds, "answer": json.loads(done.stdout)}


def typed(arguments: Sequence[str]) -> str:
    """As others may type it: their data lie elsewhere."""
    return shlex.join("DIR" if i and arguments[i - 1] == "--data" else a for i, a in enumerate(arguments))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", help="without its variant")
    parser.add_argument("--data", required=True)
    parser.add_argument("--variants", nargs="+", choices=list(CURVES), default=list(CURVES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--set", action="append", default=[], dest="changes")
    parser.add_argument("--curve", action="append", default=[], help="another argument for the curves", dest="how")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    changes = [part for change in args.changes for part in ("--set", change)]
    found: list[dict[str, Any]] = []
    for seed in args.seeds:
        for variant in args.variants:
            run = f"runs/{args.recipe}-{variant}-seed{seed}"
            train = ["train", f"{args.recipe}-{variant}", "--data", args.data, "--out", run, "--seed", str(seed)]
            found.append(sparsefw(*train, *changes, "--quiet"))
            answer = found[-1]["answer"]
            print(f"          {answer['test']}, {answer['images_per_second']:,.0f} images/s", flush=True)
            for kind, form in CURVES[variant]:
                curve = ["curve", run, "--data", args.data, "--kind", kind, "--form", form, *args.how]
                found.append(sparsefw(*curve, "--quiet"))
                points = found[-1]["answer"]["points"]
                rows = [f"{p['ratio']:.2f}: {p['plain']:.2f} / {p['refit']:.2f}" for p in points]
                print(f"          plain / refit  {',  '.join(rows)}", flush=True)
            if args.json:
                args.json.write_text(json.dumps({**environment(), "commands": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
