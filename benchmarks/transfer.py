"""Tests whether settings transfer: renewals, k and the learning rate around their defaults, for several widths and lengths.

    python benchmarks/transfer.py [--widths 16,32,64] [--steps 500,2000,10000] [--workers 2]

Trains a residual CNN on digits (batch 32), with filters constrained together with those that are removed with them. In every
cell, one setting at a time is a third or a half of its usual value, that value, or two or three times it. Usual are the default
k, a learning rate of 0.1, and as many renewals as the default may take; left to the default, small gradients make them fewer. The
score is the mean test accuracy of the dense network and of the networks without 30, 50 and 70 % of the filters: removed,
nothing retrained, nothing refitted. Two seeds.

Writes benchmarks/results/transfer-cpu.json and .png: a setting transfers if all lines are highest near the same value. With
--draw, only the picture is drawn, from the record that is there.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from shared import RESULTS, run_in_processes, write_record
from sparsefw.environment import environment
from untuned_defaults import Data, accuracy, load
from untuned_networks import Residual

FACTORS = {"renewals": (1 / 3, 1.0, 3.0), "k": (1 / 2, 1.0, 2.0), "lr": (1 / 3, 1.0, 3.0)}
TICKS = {"renewals": (1, 3, 10, 30), "k": (0.15, 0.3, 0.6, 1), "lr": (0.03, 0.1, 0.3)}
RATIOS = (0.3, 0.5, 0.7)
LR = 0.1
BATCH = 32


class Job(NamedTuple):
    """One training: a cell (width and steps), a setting, the factor on its usual value, and a seed."""

    width: int
    steps: int
    setting: str
    factor: float
    seed: int


def score(job: Job) -> dict[str, Any]:
    """Train a job, and return its accuracies, dense and at all ratios."""
    from sparsefw import SFW, constrain, curve
    from sparsefw.geometry import Groups
    from sparsefw.optim.defaults import RENEWALS, SAFE_SHARE, default_k

    torch.set_num_threads(1)
    data = load("digits", None, None)
    assert data is not None
    factor = {name: job.factor if name == job.setting else 1.0 for name in FACTORS}
    torch.manual_seed(job.seed)
    model = Residual(1, job.width)
    renewals = factor["renewals"] * min(RENEWALS, SAFE_SHARE * job.steps / 2)
    k = min(1.0, factor["k"] * default_k(Groups(), job.steps))
    example = data.train[:2]
    groups = constrain(model, "filters", example=example, steps=job.steps, renewals=renewals, k=k, report=None)
    optimizer = SFW(groups, lr=LR * factor["lr"], weight_decay=5e-4)
    _train(model, optimizer, data, job)
    measured = curve(
        model,
        "filters",
        list(RATIOS),
        form="removed",
        calibration=list(data.train.split(100)),
        refit=False,
        progress=False,
        evaluate=lambda small: accuracy(small, data),
    )
    accuracies = [measured.dense, *(point.plain for point in measured.points)]
    print(job, [round(a, 1) for a in accuracies], flush=True)
    return {**job._asdict(), "renewals": renewals, "k": k, "accuracies": accuracies}


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, data: Data, job: Job) -> None:
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, job.steps)
    draw = torch.Generator().manual_seed(job.seed)
    for _ in range(job.steps):
        chosen = torch.randint(len(data.train), (BATCH,), generator=draw)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(data.train[chosen]), data.train_labels[chosen]).backward()
        optimizer.step()
        schedule.step()


def summarize(rows: list[dict[str, Any]]) -> dict[tuple[int, int], dict[str, list[tuple[float, float]]]]:
    """Return cell -> setting -> (its value, mean accuracy over sizes and seeds)."""
    summary: dict[tuple[int, int], dict[str, list[tuple[float, float]]]] = {}
    for width, steps in dict.fromkeys((row["width"], row["steps"]) for row in rows):
        cell = [row for row in rows if (row["width"], row["steps"]) == (width, steps)]
        for setting, factors in FACTORS.items():
            line = []
            for factor in factors:
                same = [r for r in cell if r["factor"] == factor and (factor == 1.0 or r["setting"] == setting)]
                if same:
                    line.append(
                        (_value(same[0], setting), statistics.fmean(a for row in same for a in row["accuracies"]))
                    )
            summary.setdefault((width, steps), {})[setting] = line
    return summary


def _value(row: dict[str, Any], setting: str) -> float:
    lr = LR * (row["factor"] if row["setting"] == "lr" else 1.0)
    return float({"renewals": row["renewals"], "k": row["k"], "lr": lr}[setting])


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    from matplotlib.figure import Figure

    cells = summarize(rows)
    colours = {16: "#7fb8d6", 32: "#2f7fb5", 64: "#0b3d63"}
    styles = {500: ":", 2000: "--", 10000: "-"}
    figure = Figure(figsize=(9.6, 3.6), dpi=160, layout="constrained")
    titles = {"renewals": "renewals", "k": "k", "lr": "learning rate"}
    for axes, setting in zip(figure.subplots(1, 3, sharey=True), FACTORS, strict=True):
        for (width, steps), lines in cells.items():
            x, y = zip(*lines[setting], strict=True)
            axes.plot(
                x, y, marker="o", markersize=4, linewidth=1.6, color=colours.get(width), linestyle=styles.get(steps, "-"),
                label=f"{width} channels, {steps:,} steps",
            )  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_xticks(TICKS[setting], [f"{value:g}" for value in TICKS[setting]])
        axes.minorticks_off()
        axes.set_xlabel(titles[setting])
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("accuracy in %, mean over sizes")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize=7.5, frameon=False)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", default="16,32,64")
    parser.add_argument("--steps", default="500,2000,10000")
    parser.add_argument("--leave-out", default="", help="cells to skip, such as 64x10000, which takes longest")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS / "transfer-cpu")
    parser.add_argument("--draw", action="store_true", help="draw the record that is there, and train nothing")
    args = parser.parse_args()
    if args.draw:
        return draw(json.loads(args.out.with_suffix(".json").read_text())["rows"], args.out.with_suffix(".png"))
    left_out = args.leave_out.split(",")
    cells = [
        (int(w), int(s)) for s in args.steps.split(",") for w in args.widths.split(",") if f"{w}x{s}" not in left_out
    ]
    settings = [("default", 1.0), *((name, f) for name, factors in FACTORS.items() for f in factors if f != 1.0)]
    jobs = [Job(w, s, name, f, seed) for w, s in cells for name, f in settings for seed in range(args.seeds)]
    jobs.sort(key=lambda job: -job.width * job.steps)  # long ones first, so that all workers end together
    rows, minutes = run_in_processes(score, jobs, args.workers)
    record = {**environment(), "minutes": minutes, "left_out": args.leave_out, "rows": rows}
    write_record(args.out.with_suffix(".json"), record)
    draw(rows, args.out.with_suffix(".png"))
    for (width, steps), lines in summarize(rows).items():
        best = {name: max(line, key=lambda point: point[1])[0] for name, line in lines.items()}
        print(
            f"{width} channels, {steps} steps: best " + ", ".join(f"{name} {value:.3g}" for name, value in best.items())
        )


if __name__ == "__main__":
    main()
