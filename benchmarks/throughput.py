"""Measures training throughput and memory beside SGD's, recipe by recipe, by `sparsefw bench train`.

    python benchmarks/throughput.py [cifar10-resnet18 ...] [--data DIR] [--rows sgd,nuc] [--seconds 5] [--set KEY=VALUE]

Writes benchmarks/results/throughput-DEVICE.json and .md after every recipe; tables of other recipes in these files stay.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from shared import RESULTS, default_device, device_slug, markdown_table, run_sparsefw, write_record
from sparsefw.environment import device_name

STEMS = ("cifar10-resnet18", "cifar100-wide-resnet", "tinyimagenet-resnet50", "imagenet-resnet50")


def render(tables: dict[str, Any]) -> str:
    """Return the tables in Markdown, with everything that they depend on."""
    parts = [
        "# Training throughput",
        "Every table is one run; shares are of the SGD of that run, which is measured first and last. *spread*: the fastest and"
        " the slowest stretch of steps over the median.",
    ]
    return "\n\n".join([*parts, *(_table(name, table) for name, table in tables.items())]) + "\n"


def _table(name: str, measured: dict[str, Any]) -> str:
    answer = measured["answer"]
    rows = list(answer["rows"].values())
    on_gpu = bool(answer["rows"]["sgd"]["peak_bytes"])
    versions = ", ".join(f"{name} {version}" for name, version in answer["versions"].items())
    notes = [
        f"`{measured['command']}`: {measured['device']}, {answer['date']}, {versions}; {answer['engine']}; {answer['images']}.",
        f"SGD at the end against SGD at the start: {answer['drift']:+.1%}.",
        *(f"{row['label']} ran on {row['engine']}." for row in rows if row["engine"] != answer["engine"]),
    ]
    header = ["", "images/s", "share of SGD's", "ms/step", "spread", *["peak MiB", "x SGD's"] * on_gpu]
    lines = []
    for row in rows:
        cells = [row["label"], f"{row['images_per_second']:,.0f}", f"{row['share']:.3f}", f"{row['milliseconds']:.2f}"]
        cells.append("{:.3f} to {:.3f}".format(*row["spread"]))
        cells += [f"{row['peak_bytes'] / 2**20:,.0f}", f"{row['memory_share']:.2f}"] if on_gpu else []
        lines.append(cells)
    return f"## {name}\n\n{' '.join(notes)}\n\n{markdown_table(header, lines)}"


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
    device = default_device()
    out = RESULTS / f"throughput-{device_slug(device)}.json"
    tables = json.loads(out.read_text()) if out.exists() else {}
    for stem in args.stems:
        measured = run_sparsefw("bench", "train", stem, *given)
        tables[stem] = {**measured._asdict(), "device": device_name(device)}
        write_record(out, tables)
        out.with_suffix(".md").write_text(render(tables))
    print(render({stem: tables[stem] for stem in args.stems}))


if __name__ == "__main__":
    main()
