"""Compares all methods on handwritten digits, tuned alike: test accuracy after compression, without retraining.

    python benchmarks/methods_digits.py [filters-digits rank-digits weights-digits] [--seeds 2] [--workers 2] [--runs FOLDER]

Runs three sweeps (`sparsefw sweep GRID`), one after the other. All configurations of a row are trained on the first seed; the ONE
with the best mean validation accuracy over all ratios is trained on further seeds, and its test accuracies are reported.
Networks are compressed as in the paper: masked, the same ratio in every layer (weights: over all layers), BatchNorm statistics
recomputed, nothing refitted.

If it is killed, the same command continues. Writes benchmarks/results/methods-digits.json and .md.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from shared import RESULTS, markdown_table, write_record
from sparsefw.cli.sweep_request import SweepRequest, begin_or_join_sweep
from sparsefw.environment import environment
from sparsefw.sweep.processes import default_workers
from sparsefw.sweep.supervisor import run_sweep

GRIDS = ("filters-digits", "rank-digits", "weights-digits")


def summarize(results: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a sweep's results that is committed."""
    rows = {}
    for name, row in results["rows"].items():
        figures = [row["test"]["dense"], *row["test"]["plain"]]
        rows[name] = {
            "configurations": row["configurations"],
            "settings": row["settings"],
            "edges": row["edges"],
            "validation": [trial["validation"] for trial in row["tried"].values()],
            "mean": [figure["mean"] for figure in figures],
            "std": [figure["std"] for figure in figures],
        }
    return {"kind": results["kind"], "recipe": results["recipe"], "at": results["at"], "rows": rows}


def render(record: dict[str, Any]) -> str:
    """Return the page in Markdown."""
    recipes = dict.fromkeys(table["recipe"] for table in record["tables"].values())
    parts = [
        f"# All methods: {', '.join(recipes)}",
        f"{record['date']}, {record['hardware']['cpu']}, torch {record['versions']['torch']}. Written by `{record['command']}`.",
        f"Test accuracy in percent, mean and deviation over {record['seeds']} seeds, after compression without retraining:"
        " masked, the same ratio in every layer (weights: over all layers), BatchNorm statistics recomputed. Per row the one"
        " configuration with the best mean validation accuracy over all ratios (*: the smallest or largest value that was tried)."
        " *At equal compute*: methods that need two passes over every batch, with half of the epochs.",
    ]
    for name, table in record["tables"].items():
        header = ["", "dense", *(f"{ratio:.1%}".replace(".0%", "%") for ratio in table["at"]), "chosen", "of"]
        rows = []
        for label, row in table["rows"].items():
            figures = [f"{mean:.2f} ± {std:.2f}" for mean, std in zip(row["mean"], row["std"], strict=True)]
            rows.append([label, *figures, _settings_text(row), str(row["configurations"])])
        parts += [f"## {name}: {table['kind']} removed", markdown_table(header, rows)]
    return "\n\n".join(parts) + "\n"


def _settings_text(row: dict[str, Any]) -> str:
    texts = []
    for key, value in row["settings"].items():
        mark = "\\*" if key in row["edges"] else ""
        texts.append(f"{key.partition('.')[2]}={value}{mark}")
    return ", ".join(texts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("grids", nargs="*", default=GRIDS)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--workers", type=int, default=default_workers())
    parser.add_argument("--runs", type=Path, default=Path("runs", "methods-digits"))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="changes")
    parser.add_argument("--json", type=Path, default=RESULTS / "methods-digits.json")
    args = parser.parse_args()
    command = "python benchmarks/methods_digits.py " + " ".join(args.grids)
    tables = {}
    for name in args.grids:
        changes = ("engine.device=cpu", *args.changes)
        request = SweepRequest(name, out=args.runs / name, changes=changes, seeds=args.seeds)
        sweep, url = begin_or_join_sweep(request)
        tables[name] = summarize(run_sweep(sweep, url, args.workers, log=print))
        record = {"command": command.strip(), "seeds": args.seeds, "tables": tables, **environment()}
        write_record(args.json, record)
        args.json.with_suffix(".md").write_text(render(record))


if __name__ == "__main__":
    main()
