"""Measures the latency of compressed networks beside their MAC ratio, eager and in onnxruntime, all in one run.

    python benchmarks/compressed_latency.py [--model resnet18] [--batch 8] [--json FILE]

Weights are random, because the time depends on shapes only. The networks of one backend take turns, round after round, so that
a slow moment of the machine falls on all of them; medians over the rounds are reported.
"""

from __future__ import annotations

import argparse
import datetime
import platform
from pathlib import Path
from typing import Any

import torch
from torch import nn

from shared import Step, median_milliseconds, write_record
from sparsefw import compress
from sparsefw.compression.artifact.export import onnx_session
from sparsefw.compression.cost import costs
from sparsefw.compression.structure.layers import call_on_copy, evaluating
from sparsefw.environment import device_name
from sparsefw.models import build

RATIOS = (0.3, 0.5, 0.7, 0.9)
WARM_UP_CALLS = 3  # before every timed call


def compressed_networks(model: nn.Module, example: torch.Tensor, round_to: int) -> dict[str, nn.Module]:
    """Return the dense network, and compressed ones by name."""
    networks = {"dense": model}
    for kind in ("filters", "rank"):
        for multiple in (1, round_to):
            for ratio in RATIOS:
                name = f"{kind} {ratio:.0%}" + (f", multiples of {multiple}" if multiple > 1 else "")
                networks[name] = compress(model, example=example, round_to=multiple, **{kind: ratio}).model
    return networks


def eager_calls(networks: dict[str, nn.Module], example: torch.Tensor) -> dict[str, Step]:
    def eager(network: nn.Module) -> Step:
        return lambda: call_on_copy(network, example)

    return {name: eager(network) for name, network in networks.items()}


def onnxruntime_calls(networks: dict[str, nn.Module], example: torch.Tensor) -> dict[str, Step]:
    sessions = {}
    for name, network in networks.items():
        with evaluating(network):
            sessions[name] = onnx_session(network, example)
    return sessions


def timed(calls: dict[str, Step], rounds: int) -> dict[str, float]:
    return median_milliseconds(calls, rounds, "cpu", warm_up_each_round=WARM_UP_CALLS)


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
    networks = compressed_networks(model, example, args.round_to)
    with torch.no_grad():
        milliseconds = {"eager": timed(eager_calls(networks, example), args.rounds)}
    milliseconds["onnxruntime"] = timed(onnxruntime_calls(networks, example), args.rounds)
    dense = costs(model, example)
    rows = []
    for name, network in networks.items():
        size = costs(network, example)
        row: dict[str, Any] = {
            "model": name,
            "parameters": size.parameters,
            "macs": size.macs,
            "mac_ratio": dense.macs / size.macs,
        }
        for backend, times in milliseconds.items():
            row[f"{backend}_ms"] = times[name]
            row[f"{backend}_speedup"] = times["dense"] / times[name]
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
        times = "".join(f"{row[f'{b}_ms']:>10.2f} ms{row[f'{b}_speedup']:>6.1f}x" for b in milliseconds)
        print(f"{row['model']:32}{row['parameters']:>12,}{row['mac_ratio']:>7.1f}x{times}")
    if args.json:
        write_record(args.json, result)


if __name__ == "__main__":
    main()
