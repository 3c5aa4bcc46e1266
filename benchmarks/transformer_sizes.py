"""Transformers at every size: AdamW against SFW, plainly and over sizes, on text of this repository.

    python benchmarks/transformer_sizes.py [--tasks gpt-neurons bert-neurons] [--seeds 0 1] [--steps 400]

The networks, texts and learning rates are those of examples/char_gpt.py and examples/bert_classifier.py; all trainings of a task
see the same number of tokens. Units are then removed, and nothing is retrained. Writes results/transformers-cpu.json, .md and
.png; trainings that are in the record already, with the same steps, are not repeated.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from shared import RESULTS, markdown_table, write_record
from sparsefw import curve
from sparsefw.environment import environment

EXAMPLES = Path(__file__).parents[1] / "examples"
MODES = {
    "AdamW": ("AdamW", False),
    "AdamW over sizes": ("AdamW", True),
    "SFW": ("SFW", False),
    "SFW over sizes": ("SFW", True),
}
COLOURS = dict(zip(MODES, ("#999999", "#4477aa", "#ee6677", "#aa3377"), strict=True))


class Task(NamedTuple):
    """A network and the units that it loses.

    example   the script that trains it
    metric    the function there that measures it, and its words
    """

    example: str
    metric: str
    words: str
    kind: str
    shares: tuple[float, ...]


_USUAL = (0.3, 0.5, 0.7, 0.9)
_OF_FOUR_HEADS = (0.25, 0.5, 0.75)
TASKS = {
    "gpt-neurons": Task("char_gpt", "perplexity", "perplexity", "neurons", _USUAL),
    "gpt-heads": Task("char_gpt", "perplexity", "perplexity", "heads", _OF_FOUR_HEADS),
    "gpt-rank": Task("char_gpt", "perplexity", "perplexity", "rank", _USUAL),
    "bert-neurons": Task("bert_classifier", "accuracy", "accuracy in %", "neurons", _USUAL),
    "bert-heads": Task("bert_classifier", "accuracy", "accuracy in %", "heads", _OF_FOUR_HEADS),
}


def measured(task: Task, mode: str, seed: int, steps: int | None) -> dict[str, Any]:
    """Train one network; return its metric at every size, plain and as compress would recover it."""
    example = _example(task)
    method, over_sizes = MODES[mode]
    steps = example.STEPS if steps is None else steps
    net = example.train(method, task.kind, over_sizes, steps, seed)
    of = getattr(example, task.metric)
    sizes = curve(net, task.kind, task.shares, form="removed", calibration=example.calibration(), evaluate=of)
    return {
        "mode": mode,
        "seed": seed,
        "steps": steps,
        "tokens": steps * example.BATCH * example.calibration()[0].shape[1],
        "lr": example.LR[method],
        "plain": [sizes.dense, *(point.plain for point in sizes.points)],
        "chosen": [sizes.dense, *(point.metric for point in sizes.points)],
        "parameters": [
            sizes.dense_costs.parameters,
            *(point.costs.parameters for point in sizes.points if point.costs),
        ],
    }


def _example(task: Task) -> Any:
    if str(EXAMPLES) not in sys.path:
        sys.path.append(str(EXAMPLES))
    return importlib.import_module(task.example)


def means(rows: Sequence[dict[str, Any]], mode: str, key: str) -> list[float]:
    """Return the mean over seeds at every size."""
    return [statistics.fmean(column) for column in zip(*(row[key] for row in rows if row["mode"] == mode), strict=True)]


def render(record: dict[str, Any]) -> str:
    """Return the tables of all tasks in Markdown."""
    about = f"{record['date']}, {record['hardware']['cpu']}, torch {record['versions']['torch']}"
    parts = [f"# Transformers at every size\n\n{(__doc__ or '').splitlines()[0]} {about}."]
    for name, rows in record["tasks"].items():
        task = TASKS[name]
        seeds = sorted({row["seed"] for row in rows})
        rates = " or ".join(f"{lr:g}" for lr in sorted({row["lr"] for row in rows}))
        parts.append(
            f"## {name}\n\n{task.words}, {task.kind} removed; {rows[0]['steps']} steps, {rows[0]['tokens']:,} tokens in each "
            f"training, lr={rates}, seeds {', '.join(map(str, seeds))}"
        )
        for key, words in (("plain", "Nothing refitted:"), ("chosen", "As `compress` recovers:")):
            header = ["", "dense", *(f"{share:.0%}" for share in task.shares)]
            modes = [mode for mode in MODES if any(row["mode"] == mode for row in rows)]
            lines = [[mode, *(f"{value:.2f}" for value in means(rows, mode, key))] for mode in modes]
            parts.append(f"{words}\n\n{markdown_table(header, lines)}")
    return "\n\n".join(parts) + "\n"


def draw(record: dict[str, Any], path: Path) -> None:
    """Draw a panel per task: the metric against what is removed, dashed without and solid with the recovery of compress."""
    from matplotlib.figure import Figure

    tasks = record["tasks"]
    figure = Figure(figsize=(4.2 * len(tasks), 3.6), dpi=150, layout="constrained")
    for axes, (name, rows) in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks.items(), strict=True):
        task = TASKS[name]
        removed = [100 * share for share in (0.0, *task.shares)]
        for mode in MODES:
            if any(row["mode"] == mode for row in rows):
                axes.plot(removed, means(rows, mode, "plain"), "--", color=COLOURS[mode], linewidth=1)
                axes.plot(removed, means(rows, mode, "chosen"), "o-", color=COLOURS[mode], label=mode, markersize=3.5)
        dense = [value for mode in MODES for value in means(rows, mode, "chosen")]
        if task.metric == "perplexity":
            axes.set_ylim(0.97 * min(dense), min(1.1 * max(dense), 2.2 * min(dense)))
        axes.set(title=name, xlabel=f"{task.kind} removed, %", ylabel=task.words)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
    figure.axes[0].legend(frameon=False, fontsize=8)
    figure.savefig(path)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(arguments)
    path = args.out / "transformers-cpu.json"
    known = json.loads(path.read_text())["tasks"] if path.exists() else {}
    for name in args.tasks:
        for seed in args.seeds:
            for mode in args.modes:
                rows = known.setdefault(name, [])
                steps = args.steps or _example(TASKS[name]).STEPS
                if any((row["mode"], row["seed"], row["steps"]) == (mode, seed, steps) for row in rows):
                    continue
                rows.append(measured(TASKS[name], mode, seed, steps))
                print(name, rows[-1], flush=True)
                record = {"tasks": known, **environment()}
                write_record(path, record)
    record = json.loads(path.read_text())
    text = render(record)
    print(text)
    path.with_suffix(".md").write_text(text)
    draw(record, path.with_suffix(".png"))


if __name__ == "__main__":
    main()
