"""Dense against compressed: measured latency beside the MAC ratio, eager and in onnxruntime, all in one run.

    python benchmarks/compressed_latency.py [--model resnet18] [--batch 8] [--json FILE]

Weights are random: time depends on shapes only. Variants of one backend are timed in turn, round by round, so that a slow
moment of the machine falls on all of them; the median over the rounds is reported.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sparsefw import compress
from sparsefw.compression.artifact.export import onnx_session
from sparsefw.compression.cost import costs
from sparsefw.compression.structure.layers import call, evaluating
from sparsefw.environment import device_name
from sparsefw.models import build

RATIOS = (0.3, 0.5, 0.7, 0.9)


def variants(model: nn.Module, example: torch.Tensor, round_to: int) -> dict[str, nn.Module]:
    found = {"dense": model}
    for kind in ("filters", "rank"):
        for multiple in (1, round_to):
            for ratio in RATIOS:
                name = f"{kind} {ratio:.0%}" + (f", multiples of {multiple}" if multiple > 1 else "")
                found[name] = compress(model, example=example, round_to=multiple, **{kind: ratio}).model
    return found


def interleaved(runs: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Milliseconds per call of each, one after the other in every round, each after three calls that warm its caches."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, once in runs.items():
            for _ in range(3):
                once()
            start = time.perf_counter()
            once()
            times[name].append((time.perf_counter() - start) * 1e3)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--round-to", type=int, default=16)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = build(args.model, classes=10, stem="cifar").eval()
    example = torch.randn(args.batch, 3, 32, 32)
    models = variants(model, example, args.round_to)

    def eager(net: nn.Module) -> Callable[[], Any]:
        return lambda: call(net, example)

    with torch.no_grad():
        in_eager = interleaved({name: eager(net) for name, net in models.items()}, args.rounds)
    sessions: dict[str, Callable[[], Any]] = {}
    for name, net in models.items():
        with evaluating(net):
            sessions[name] = onnx_session(net, example)
    in_onnxruntime = interleaved(sessions, args.rounds)
    dense = costs(model, example)
    rows = []
    for name, net in models.items():
        size = costs(net, example)
        row: dict[str, Any] = {
            "model": name,
            "parameters": size.parameters,
            "macs": size.macs,
            "mac_ratio": dense.macs / size.macs,
        }
        for backend, times in (("eager", in_eager), ("onnxruntime", in_onnxruntime)):
            row[f"{backend}_ms"] = statistics.median(times[name])
            row[f"{backend}_speedup"] = statistics.median(times["dense"]) / row[f"{backend}_ms"]
        rows.append(row)
    import onnxruntime

    result = {
        "command": f"python benchmarks/compressed_latency.py --model {args.model} --batch {args.batch}",
        "date": datetime.date.today().isoformat(),
        "hardware": device_name("cpu"),
        "versions": {
            "torch": torch.__version__,
            "onnxruntime": onnxruntime.__version__,
            "python": platform.python_version(),
        },
        "batch": args.batch,
        "rows": rows,
    }
    print(f"{args.model}, 32 x 32, batch {args.batch}, {result['hardware']}")
    print(f"{'':32}{'parameters':>12}{'MACs':>8}{'eager':>20}{'onnxruntime':>20}")
    for row in rows:
        times = "".join(f"{row[f'{b}_ms']:>10.2f} ms{row[f'{b}_speedup']:>6.1f}x" for b in ("eager", "onnxruntime"))
        print(f"{row['model']:32}{row['parameters']:>12,}{row['mac_ratio']:>7.1f}x{times}")
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
