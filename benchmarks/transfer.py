"""Do settings transfer? The dial, k and the learning rate around their defaults, over widths and lengths of training.

    python benchmarks/transfer.py [--widths 16,32,64] [--steps 500,2000,10000] [--workers 2]

A residual CNN on digits (batch 32), filters with those that they are removed with. In every cell one setting at a time is a third
or a half of its default, the default, or two or three times it. The figure of merit is the mean test accuracy of the dense net
and of those without 30, 50 and 70 % of their filters: removed, nothing retrained, nothing refitted. Two seeds.

Writes benchmarks/results/transfer-cpu.json and .png: every line should be highest near 1.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from sparsefw.environment import environment
from stranger_networks import Residual
from strangers import Data, accuracy, load

RESULTS = Path(__file__).with_name("results")
FACTORS = {"renewals": (1 / 3, 1.0, 3.0), "k": (1 / 2, 1.0, 2.0), "lr": (1 / 3, 1.0, 3.0)}
RATIOS, LR, BATCH = (0.3, 0.5, 0.7), 0.1, 32


class Job(NamedTuple):
    width: int
    steps: int
    setting: str
    factor: float
    seed: int


def score(job: Job) -> dict[str, Any]:
    """Train as the job says; the mean accuracy over all sizes."""
    from sparsefw import SFW, constrain, coupled_filters, curve
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
    rules = coupled_filters(model, data.train[:2])
    groups = constrain(model, rules, steps=job.steps, renewals=renewals, k=k, report=None)
    optimizer = SFW(groups, lr=LR * factor["lr"], weight_decay=5e-4)
    _train(model, optimizer, data, job)
    found = curve(
        model, "filters", list(RATIOS), form="removed", calibration=list(data.train.split(100)), refit=False, progress=False,
        evaluate=lambda small: accuracy(small, data),
    )  # fmt: skip
    accuracies = [found.dense, *(point.plain for point in found.points)]
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


def summary(rows: list[dict[str, Any]]) -> dict[tuple[int, int], dict[str, list[tuple[float, float]]]]:
    """Cell -> setting -> (factor, mean accuracy over sizes and seeds)."""
    found: dict[tuple[int, int], dict[str, list[tuple[float, float]]]] = {}
    for width, steps in dict.fromkeys((row["width"], row["steps"]) for row in rows):
        cell = [row for row in rows if (row["width"], row["steps"]) == (width, steps)]
        for setting, factors in FACTORS.items():
            line = []
            for factor in factors:
                same = [r for r in cell if r["factor"] == factor and (factor == 1.0 or r["setting"] == setting)]
                if same:
                    line.append((factor, statistics.fmean(a for row in same for a in row["accuracies"])))
            found.setdefault((width, steps), {})[setting] = line
    return found


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    from matplotlib.figure import Figure

    cells = summary(rows)
    colours = {16: "#7fb8d6", 32: "#2f7fb5", 64: "#0b3d63"}
    styles = {500: ":", 2000: "--", 10000: "-"}
    figure = Figure(figsize=(9.6, 3.6), dpi=160, layout="constrained")
    titles = {"renewals": "renewals, x the default", "k": "k, x the default", "lr": f"learning rate, x {LR}"}
    for axes, setting in zip(figure.subplots(1, 3, sharey=True), FACTORS, strict=True):
        for (width, steps), lines in cells.items():
            x, y = zip(*lines[setting], strict=True)
            axes.plot(
                x, y, marker="o", markersize=4, linewidth=1.6, color=colours.get(width), linestyle=styles.get(steps, "-"),
                label=f"{width} channels, {steps:,} steps",
            )  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_xticks(FACTORS[setting], [f"{factor:.3g}" for factor in FACTORS[setting]])
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
    parser.add_argument("--leave-out", default="", help="cells such as 64x10000, which take longest")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS / "transfer-cpu")
    options = parser.parse_args()
    left_out = options.leave_out.split(",")
    cells = [
        (int(w), int(s))
        for s in options.steps.split(",")
        for w in options.widths.split(",")
        if f"{w}x{s}" not in left_out
    ]
    settings = [("default", 1.0), *((name, f) for name, factors in FACTORS.items() for f in factors if f != 1.0)]
    jobs = [Job(w, s, name, f, seed) for w, s in cells for name, f in settings for seed in range(options.seeds)]
    jobs.sort(key=lambda job: -job.width * job.steps)
    started = time.perf_counter()
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        rows = list(pool.map(score, jobs))
    minutes = round((time.perf_counter() - started) / 60, 1)
    about = {**environment(), "minutes": minutes, "left_out": options.leave_out}
    options.out.with_suffix(".json").write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")
    draw(rows, options.out.with_suffix(".png"))
    for (width, steps), lines in summary(rows).items():
        best = {name: max(line, key=lambda point: point[1])[0] for name, line in lines.items()}
        print(f"{width} channels, {steps} steps: best " + ", ".join(f"{name} x {f:.3g}" for name, f in best.items()))


if __name__ == "__main__":
    main()
