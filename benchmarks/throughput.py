"""Training throughput and memory beside SGD's, recipe by recipe: `sparsefw bench train`, one process after the other.

    python benchmarks/throughput.py [cifar10-resnet18 ...] [--data DIR] [--rows sgd,nuc] [--seconds 5] [--set KEY=VALUE]

Writes benchmarks/results/throughput-DEVICE.json and .md after every recipe; tables of other recipes that are there stay.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import torch

from recipes import sparsefw
from sparsefw.environment import device_name

RESULTS = Path(__file__).with_name("results")
STEMS = ("cifar10-resnet18", "cifar100-wide-resnet", "tinyimagenet-resnet50", "imagenet-resnet50")


def slug(device: str) -> str:
    """For file names: "cpu", or such as "h200"."""
    name = "cpu" if device == "cpu" else torch.cuda.get_device_name(device)
    return re.sub("[^a-z0-9]+", "-", name.lower().removeprefix("nvidia "))


def render(tables: dict[str, Any]) -> str:
    """The tables as Markdown, with all that they depend on."""
    parts = [
        "# Training throughput",
        "Every table is one run; shares are of SGD's in it, which is measured first and last. *spread*: the fastest and the"
        " slowest stretch of steps over the median.",
    ]
    return "\n\n".join([*parts, *(_table(name, table) for name, table in tables.items())]) + "\n"


def _table(name: str, measured: dict[str, Any]) -> str:
    answer = measured["answer"]
    rows, on_gpu = list(answer["rows"].values()), bool(answer["rows"]["sgd"]["peak_bytes"])
    versions = ", ".join(f"{name} {version}" for name, version in answer["versions"].items())
    about = [
        f"`{measured['command']}`: {measured['device']}, {answer['date']}, {versions}; {answer['engine']}; {answer['images']}.",
        f"SGD at the end against SGD at the start: {answer['drift']:+.1%}.",
        *(f"{row['label']} ran on {row['engine']}." for row in rows if row["engine"] != answer["engine"]),
    ]
    heads = ["", "images/s", "share of SGD's", "ms/step", "spread", *["peak MiB", "x SGD's"] * on_gpu]
    lines = [heads, ["---"] * len(heads)]
    for row in rows:
        cells = [row["label"], f"{row['images_per_second']:,.0f}", f"{row['share']:.3f}", f"{row['milliseconds']:.2f}"]
        cells.append("{:.3f} to {:.3f}".format(*row["spread"]))
        cells += [f"{row['peak_bytes'] / 2**20:,.0f}", f"{row['memory_share']:.2f}"] if on_gpu else []
        lines.append(cells)
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return f"## {name}\n\n{' '.join(about)}\n\n{table}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stems", nargs="*", default=STEMS, help="recipes without their variants")
    parser.add_argument("--data")
    parser.add_argument("--rows")
    parser.add_argument("--seconds")
    parser.add_argument("--set", action="append", default=[], dest="changes")
    args = parser.parse_args()
    options = [("--data", args.data), ("--rows", args.rows), ("--seconds", args.seconds)]
    options += [("--set", change) for change in args.changes]
    given = [word for option, value in options if value is not None for word in (option, value)]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    out = RESULTS / f"throughput-{slug(device)}.json"
    tables = json.loads(out.read_text()) if out.exists() else {}
    for stem in args.stems:
        tables[stem] = {**sparsefw("bench", "train", stem, *given), "device": device_name(device)}
        out.write_text(json.dumps(tables, indent=1) + "\n")
        out.with_suffix(".md").write_text(render(tables))
    print(render({stem: tables[stem] for stem in args.stems}))


if __name__ == "__main__":
    main()
