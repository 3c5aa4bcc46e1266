"""Profiles a training step: the GPU kernels of rows of `sparsefw bench train`, added up by their purpose.

    python benchmarks/step_profile.py cifar10-resnet18 [--rows sgd,filters,rank-0.3] [--data DIR] [--set KEY=VALUE] [--json FILE]

Needs a CUDA device. The steps are those of `sparsefw train`, with the same data path and the same graph.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from shared import write_record
from sparsefw.bench import ROWS, WARM_UP_STEPS, choose_rows, endless_batches, row_config
from sparsefw.environment import environment
from sparsefw.train.display import Display
from sparsefw.train.run import prepare

STEPS = 20
# Purpose -> pattern of kernel names; the first that matches counts.
PURPOSES = {
    "sparsefw": r"^sfw_",
    "compiled by inductor": r"^triton_",
    "optimizer (torch)": r"multi_tensor_apply|CatArray|lpnorm",
    "convolutions and products": r"cudnn|xmma|implicit_gemm|cutlass|nvjet|gemm|wgrad|dgrad|conv|sm90|sm80|nhwc|nchw|gemv|splitK",
    "factorisations": r"potrf|trsm|chol|syevj|gesvd|solver|trtri",
    "copies": r"[Mm]emcpy|[Mm]emset",
}


def purpose_of(kernel: str) -> str:
    matches = (purpose for purpose, pattern in PURPOSES.items() if re.search(pattern, kernel))
    return next(matches, "other kernels of torch")


def profile(stem: str, row: str, data: Path | None, changes: list[str]) -> dict[str, Any]:
    """Return the microseconds per step of a row, by purpose and by kernel."""
    training = prepare(row_config(stem, ROWS[row], data, changes), data, Display(stem, quiet=True))
    training.model.train()
    batches = endless_batches(training)
    for _ in range(WARM_UP_STEPS):
        training.rates.scale(1.0)
        training.advance(next(batches))
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as trace:
        for _ in range(STEPS):
            training.rates.scale(1.0)
            training.sums += training.advance(next(batches))
        torch.cuda.synchronize()
    microseconds: Counter[str] = Counter()
    launches: Counter[str] = Counter()
    for event in trace.events():
        microseconds[event.name] += event.device_time
        launches[event.name] += 1
    by_purpose: Counter[str] = Counter()
    for name, time in microseconds.items():
        by_purpose[purpose_of(name)] += time / STEPS
    kernels = [
        {
            "kernel": name[:120],
            "kind": purpose_of(name),
            "us": round(time / STEPS, 1),
            "launches": launches[name] / STEPS,
        }
        for name, time in microseconds.most_common()
    ]
    return {
        "us_by_kind": {purpose: round(time, 1) for purpose, time in by_purpose.most_common()},
        "us": round(sum(by_purpose.values()), 1),
        "launches": sum(launches.values()) / STEPS,
        "kernels": kernels,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", help="without its variant")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--rows", default="sgd,filters,weights,rank-0.1,rank-0.3")
    parser.add_argument("--set", action="append", default=[], dest="changes")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--top", type=int, default=12, help="how many kernels to print")
    args = parser.parse_args()
    profiles = {}
    for row in choose_rows(args.rows):
        profiles[row] = profile(args.recipe, row, args.data, args.changes)
        print(f"\n{row}: {profiles[row]['us']:,.0f} us of kernels in {profiles[row]['launches']:.0f} launches a step")
        for purpose, time in profiles[row]["us_by_kind"].items():
            print(f"  {time:8.1f}  {purpose}")
        for kernel in profiles[row]["kernels"][: args.top]:
            print(f"    {kernel['us']:8.1f} us  {kernel['launches']:5.1f} x  {kernel['kernel'][:90]}")
    if args.json:
        write_record(args.json, {"results": profiles, **environment()})


if __name__ == "__main__":
    main()
