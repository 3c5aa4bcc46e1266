"""Where the time of a training step goes: the kernels of the rows of `sparsefw bench train`, added up by what they do.

    python benchmarks/step_profile.py cifar10-resnet18 [--rows sgd,filters,rank-0.3] [--data DIR] [--set KEY=VALUE] [--json FILE]

Needs a CUDA device. The steps are those of `sparsefw train`: same data path, same graph.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from sparsefw.bench import ROWS, WARM_UP_STEPS, chosen_rows, endless_batches, row_config
from sparsefw.environment import environment
from sparsefw.train.display import Display
from sparsefw.train.run import prepare

STEPS = 20
KINDS = {
    "sparsefw": r"^sfw_",
    "compiled by inductor": r"^triton_",
    "optimizer (torch)": r"multi_tensor_apply|CatArray|lpnorm",
    "convolutions and products": r"cudnn|xmma|implicit_gemm|cutlass|nvjet|gemm|wgrad|dgrad|conv|sm90|sm80|nhwc|nchw|gemv|splitK",
    "factorisations": r"potrf|trsm|chol|syevj|gesvd|solver|trtri",
    "copies": r"[Mm]emcpy|[Mm]emset",
}


def kind_of(kernel: str) -> str:
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, kernel)), "other kernels of torch")


def profile(stem: str, row: str, data: Path | None, changes: list[str]) -> dict[str, Any]:
    t = prepare(row_config(stem, ROWS[row], data, changes), data, Display(stem, quiet=True))
    t.model.train()
    batches = endless_batches(t)
    for _ in range(WARM_UP_STEPS):
        t.rates.scale(1.0)
        t.advance(next(batches))
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as trace:
        for _ in range(STEPS):
            t.rates.scale(1.0)
            t.sums += t.advance(next(batches))
        torch.cuda.synchronize()
    micro: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for event in trace.events():
        micro[event.name] += event.device_time
        count[event.name] += 1
    kinds: Counter[str] = Counter()
    for name, time in micro.items():
        kinds[kind_of(name)] += time / STEPS
    kernels = [
        {"kernel": name[:120], "kind": kind_of(name), "us": round(time / STEPS, 1), "launches": count[name] / STEPS}
        for name, time in micro.most_common()
    ]
    return {
        "us_by_kind": {kind: round(time, 1) for kind, time in kinds.most_common()},
        "us": round(sum(kinds.values()), 1),
        "launches": sum(count.values()) / STEPS,
        "kernels": kernels,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--rows", default="sgd,filters,weights,rank-0.1,rank-0.3")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--top", type=int, default=12)
    args = parser.parse_args()
    results = {}
    for row in chosen_rows(args.rows):
        found = results[row] = profile(args.recipe, row, args.data, args.set)
        print(f"\n{row}: {found['us']:,.0f} us of kernels in {found['launches']:.0f} launches a step")
        for kind, time in found["us_by_kind"].items():
            print(f"  {time:8.1f}  {kind}")
        for kernel in found["kernels"][: args.top]:
            print(f"    {kernel['us']:8.1f} us  {kernel['launches']:5.1f} x  {kernel['kernel'][:90]}")
    if args.json:
        args.json.write_text(json.dumps({"results": results, **environment()}, indent=1))


if __name__ == "__main__":
    main()
