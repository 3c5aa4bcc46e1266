"""All methods on handwritten digits, tuned alike, as the paper's tables: test accuracy after compression, without retraining.

    python benchmarks/methods_digits.py [filters-digits rank-digits weights-digits] [--seeds 2] [--workers 2] [--runs FOLDER]

Three sweeps (`sparsefw sweep GRID`), one after the other: all configurations of a row are trained on the first seed; the ONE with
the best mean validation accuracy over all ratios is trained on further seeds, and its test accuracies are reported. Compression
is the paper's: masked, the same ratio in every layer (weights: over all), BatchNorm statistics recomputed, nothing refitted.

Killed, the same command goes on. Writes benchmarks/results/methods-digits.json and .md.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from sparsefw.cli.requested_sweep import SweepRequest, begin_or_join_sweep
from sparsefw.environment import environment
from sparsefw.sweep.run import run_sweep, usual_workers

RESULTS = Path(__file__).with_name("results")
GRIDS = ("filters-digits", "rank-digits", "weights-digits")


def table(found: dict[str, Any]) -> dict[str, Any]:
    """Of a sweep's results, what is committed."""
    rows = {}
    for name, row in found["rows"].items():
        cells = [row["test"]["dense"], *row["test"]["plain"]]
        rows[name] = {
            "configurations": row["configurations"],
            "settings": row["settings"],
            "edges": row["edges"],
            "validation": [one["validation"] for one in row["tried"].values()],
            "mean": [cell["mean"] for cell in cells],
            "std": [cell["std"] for cell in cells],
        }
    return {"kind": found["kind"], "recipe": found["recipe"], "at": found["at"], "rows": rows}


def render(record: dict[str, Any]) -> str:
    lines = [
        f"# All methods: {', '.join(dict.fromkeys(found['recipe'] for found in record['tables'].values()))}",
        f"{record['date']}, {record['hardware']['cpu']}, torch {record['versions']['torch']}. Written by `{record['command']}`.",
        f"Test accuracy in percent, mean and deviation over {record['seeds']} seeds, after compression without retraining:"
        " masked, the same ratio in every layer (weights: over all layers), BatchNorm statistics recomputed. Per row the one"
        " configuration with the best mean validation accuracy over all ratios (*: the smallest or largest value that was tried)."
        " *At equal compute*: methods that look twice at every batch, with half of the epochs.",
    ]
    for name, found in record["tables"].items():
        heads = ["", "dense", *(f"{ratio:.1%}".replace(".0%", "%") for ratio in found["at"]), "chosen", "of"]
        cut = [heads, ["---"] * len(heads)]
        for label, row in found["rows"].items():
            values = [f"{mean:.2f} ± {std:.2f}" for mean, std in zip(row["mean"], row["std"], strict=True)]
            words = ", ".join(
                f"{key.partition('.')[2]}={value}{chr(92) + '*' if key in row['edges'] else ''}"
                for key, value in row["settings"].items()
            )
            cut.append([label, *values, words, str(row["configurations"])])
        lines.append(f"## {name}: {found['kind']} removed")
        lines.append("\n".join(f"| {' | '.join(cells)} |" for cells in cut))
    return "\n\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("grids", nargs="*", default=GRIDS)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--workers", type=int, default=usual_workers())
    parser.add_argument("--runs", type=Path, default=Path("runs", "methods-digits"))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--json", type=Path, default=RESULTS / "methods-digits.json")
    arguments = parser.parse_args()
    tables = {}
    for name in arguments.grids:
        changes = ("engine.device=cpu", *arguments.set)
        request = SweepRequest(name, out=arguments.runs / name, changes=changes, seeds=arguments.seeds)
        sweep, url = begin_or_join_sweep(request)
        tables[name] = table(run_sweep(sweep, url, arguments.workers, say=print))
        command = "python benchmarks/methods_digits.py " + " ".join(arguments.grids)
        record = {"command": command.strip(), "seeds": arguments.seeds, "tables": tables, **environment()}
        arguments.json.write_text(json.dumps(record, indent=1))
        arguments.json.with_suffix(".md").write_text(render(record))


if __name__ == "__main__":
    main()
