"""All methods on handwritten digits, tuned alike, as the paper's tables: test accuracy after compression, without retraining.

    python benchmarks/methods_digits.py [filters-digits rank-digits weights-digits] [--seeds 2] [--workers 2] [--runs FOLDER]
                                        [--recipe fashion-resnet --data DIR]

For every row of a grid, all configurations are trained on the first seed; the ONE with the best mean validation accuracy over all
ratios is trained on further seeds, and its test accuracies are reported. A method that looks twice at every batch has a second
row, with half of the epochs: the same compute as the others, tuned for itself. Compression is the paper's: masked, the same ratio
in every layer (weights: over all), BatchNorm statistics recomputed, nothing refitted.

Runs are kept in FOLDER: killed, the same command goes on. Writes benchmarks/results/methods-digits.json and .md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from sparsefw.environment import environment
from sparsefw.train import fit
from sparsefw.train.config import RunConfig
from sparsefw.train.grids import Grid, load_grid
from sparsefw.train.recipes import load_recipe, write_config
from sparsefw.train.study import Study

RESULTS = Path(__file__).with_name("results")
GRIDS = ("filters-digits", "rank-digits", "weights-digits")


class Row(NamedTuple):
    """A row of a table: a method of the grid; with equal compute where it looks twice and has half of the epochs."""

    label: str
    method: str
    changes: tuple[str, ...] = ()


def rows(grid: Grid) -> Iterator[Row]:
    for method in grid.methods:
        yield Row(method, method)
        config = grid.points(method)[0].config
        if config.method.looks == 2:
            yield Row(f"{method}, equal compute", method, (f"train.epochs={config.train.epochs // 2}",))


def measured(config: RunConfig, folder: Path, data: Path | None) -> dict[str, dict[str, list[float]]]:
    """Train, or read what was trained: dense accuracy and that at every ratio, on the validation and on the test images."""
    import torch

    torch.set_num_threads(1)
    file = folder / "measured.json"
    if not file.exists():
        fit(config, folder, data, quiet=True)
        study = Study.open(folder, data, device=config.engine.device)
        found = {}
        for split in ("validation", "test"):
            points = study.curve(None, None, "masked", split, refit=False, progress=False).points
            found[split] = [study.metrics(study.model, split)[study.task.metric], *(p.plain for p in points)]
        file.write_text(json.dumps(found))
    return dict(json.loads(file.read_text()))


def folder_of(config: RunConfig, runs: Path) -> Path:
    """By content and not by its place in the grid: a configuration that changed is another run, one that moved is not."""
    digest = hashlib.sha256(write_config(config.model_copy(update={"name": ""})).encode()).hexdigest()[:10]
    return runs / f"{config.name.rpartition('-')[0]}-seed{config.seed}-{digest}".replace(" ", "_")


def table(grid: Grid, arguments: argparse.Namespace, pool: ProcessPoolExecutor) -> dict[str, Any]:
    settings = ["engine.device=cpu", *arguments.set]

    def start(row: Row, seed: int, only: slice = slice(None)) -> list[tuple[dict[str, Any], Any]]:
        points = grid.points(row.method, [*settings, *row.changes], seed=seed)[only]
        return [
            (p.chosen, pool.submit(measured, p.config, folder_of(p.config, arguments.runs), arguments.data))
            for p in points
        ]

    tried = {row: start(row, 0) for row in rows(grid)}
    found = {}
    for row, points in tried.items():
        answers = [future.result() for _, future in points]
        best = max(range(len(points)), key=lambda i: statistics.mean(answers[i]["validation"][1:]))
        more = [start(row, seed, slice(best, best + 1))[0][1] for seed in range(1, arguments.seeds)]
        tests = [answers[best]["test"], *(future.result()["test"] for future in more)]
        means = [statistics.mean(column) for column in zip(*tests, strict=True)]
        spreads = [statistics.stdev(column) if len(column) > 1 else 0.0 for column in zip(*tests, strict=True)]
        found[row.label] = {
            "configurations": len(points),
            "chosen": points[best][0],
            "at_the_edge": _edges(points, best),
            "validation": [statistics.mean(answer["validation"][1:]) for answer in answers],
            "mean": means,
            "std": spreads,
        }
        print(f"{grid.name:16} {row.label:28} {cells(means, spreads)}  {points[best][0]}", flush=True)
    return {"kind": grid.kind, "recipe": grid.recipe, "at": list(grid.at), "rows": found}


def _edges(points: list[tuple[dict[str, Any], Any]], best: int) -> list[str]:
    """Settings whose chosen value is the smallest or largest of those tried: a wider grid might do better."""
    numbers = {
        key: [chosen[key] for chosen, _ in points]
        for key, value in points[best][0].items()
        if isinstance(value, (int, float))
    }
    chosen = points[best][0]
    return [
        key for key, tried in numbers.items() if min(tried) < max(tried) and chosen[key] in (min(tried), max(tried))
    ]


def cells(means: list[float], spreads: list[float]) -> str:
    return " ".join(f"{mean:6.2f} ±{spread:5.2f}" for mean, spread in zip(means, spreads, strict=True))


def render(record: dict[str, Any]) -> str:
    lines = [
        f"# All methods: {', '.join(dict.fromkeys(found['recipe'] for found in record['tables'].values()))}",
        f"{record['date']}, {record['hardware']['cpu']}, torch {record['versions']['torch']}. Written by `{record['command']}`.",
        f"Test accuracy in percent, mean and deviation over {record['seeds']} seeds, after compression without retraining:"
        " masked, the same ratio in every layer (weights: over all layers), BatchNorm statistics recomputed. Per row the one"
        " configuration with the best mean validation accuracy over all ratios (*: the smallest or largest value that was tried)."
        " *Equal compute*: methods that look twice at every batch, with half of the epochs.",
    ]
    for name, found in record["tables"].items():
        heads = ["", "dense", *(f"{ratio:.1%}".replace(".0%", "%") for ratio in found["at"]), "chosen", "of"]
        cut = [heads, ["---"] * len(heads)]
        for label, row in found["rows"].items():
            values = [f"{mean:.2f} ± {std:.2f}" for mean, std in zip(row["mean"], row["std"], strict=True)]
            words = ", ".join(
                f"{key.partition('.')[2]}={value}{chr(92) + '*' if key in row['at_the_edge'] else ''}"
                for key, value in row["chosen"].items()
            )
            cut.append([label, *values, words, str(row["configurations"])])
        lines.append(f"## {name}: {found['kind']} removed")
        lines.append("\n".join(f"| {' | '.join(cells)} |" for cells in cut))
    return "\n\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("grids", nargs="*", default=GRIDS)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--runs", type=Path, default=Path("runs", "methods-digits"))
    parser.add_argument("--recipe", help="another recipe's stem, such as fashion-resnet")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--json", type=Path, default=RESULTS / "methods-digits.json")
    arguments = parser.parse_args()
    tables = {}
    with ProcessPoolExecutor(arguments.workers, mp_context=get_context("spawn")) as pool:
        for name in arguments.grids:
            grid = load_grid(name)
            if arguments.recipe:
                grid = grid.model_copy(update={"recipe": arguments.recipe, "name": f"{grid.kind}-{arguments.recipe}"})
            load_recipe(f"{grid.recipe}-sgd")  # one line where there is none, before anything is trained
            tables[grid.name] = table(grid, arguments, pool)
            command = "python benchmarks/methods_digits.py " + " ".join(arguments.grids)
            record = {"command": command.strip(), "seeds": arguments.seeds, "tables": tables, **environment()}
            arguments.json.write_text(json.dumps(record, indent=1))
            arguments.json.with_suffix(".md").write_text(render(record))


if __name__ == "__main__":
    main()
