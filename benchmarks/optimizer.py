"""Time of one optimizer step on the parameters of a ResNet-18: torch's SGD and SFW on every region, in one run.

    python benchmarks/optimizer.py [--device cpu|cuda] [--rounds N] [--json FILE]

Every contender steps the same network in turn, round after round, so that a slow moment of the machine hits all alike;
the ratio is that of the medians. On CUDA each step is also captured in a graph and replayed, which is what training does.
The forward-backward pass at batch 128 is timed for scale.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import torch
from torch import nn

from sparsefw import SFW, Rule, constrain
from sparsefw import geometry as geo
from sparsefw.environment import device_name
from sparsefw.models import build
from sparsefw.optim import ReferenceSFW

BATCH = 128
REGIONS: dict[str, list[Rule]] = {
    "filters (group-k-support) k=0.2": [Rule(kind="filters", k=0.2)],
    "weights (k-support) k=0.1": [Rule("*weight", geo.KSupportBall, k=0.1, types=(nn.Conv2d, nn.Linear))],
    "weights (k-sparse) k=0.1": [Rule("*weight", geo.KSparsePolytope, k=0.1, types=(nn.Conv2d, nn.Linear))],
    "2:4": [Rule(kind="2:4")],
    "rank (spectral-k-support) k=0.1": [Rule(kind="rank", k=0.1)],
    "rank (spectral-k-support) k=0.3": [Rule(kind="rank", k=0.3)],
    "rank (spectral k-sparse) k=0.1": [Rule("*", geo.SpectralKSparse, k=0.1, types=(nn.Conv2d,))],
    "nuclear": [Rule("*", geo.NuclearBall, types=(nn.Conv2d,))],
    "spectral ball": [Rule("*", geo.SpectralBall, types=(nn.Conv2d,))],
    "L2 ball": [Rule("*", lambda radius=1.0: geo.LpBall(2, radius), types=(nn.Conv2d,))],
}


def network(device: str) -> nn.Module:
    torch.manual_seed(0)
    net = build("resnet18", classes=10, stem="cifar").to(device)
    for p in net.parameters():
        p.grad = torch.randn_like(p) * 1e-3
    return net


def contenders(net: nn.Module) -> dict[str, Callable[[], object]]:
    """Name -> step. The learning rate is tiny, so that the weights stay what they are over thousands of steps."""
    sgd = dict(lr=1e-6, momentum=0.9, weight_decay=5e-4)
    steps: dict[str, Callable[[], object]] = {
        "SGD (torch, foreach)": torch.optim.SGD(net.parameters(), foreach=True, **sgd).step
    }
    for name, rules in REGIONS.items():
        steps[name] = SFW(constrain(net, rules, w=20.0, report=None), **sgd).step
    for name in ("filters (group-k-support) k=0.2", "rank (spectral-k-support) k=0.1"):
        steps[f"{name}, reference"] = ReferenceSFW(constrain(net, REGIONS[name], w=20.0, report=None), **sgd).step
    return steps


def seconds(work: Callable[[], object], device: str) -> float:
    if device == "cuda":
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        stop.record()
        torch.cuda.synchronize()
        return start.elapsed_time(stop) / 1e3
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def captured(step: Callable[[], object]) -> Callable[[], object]:
    """The step as one CUDA graph: eight steps first, so that buffers and warm starts exist."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(8):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def measure(steps: dict[str, Callable[[], object]], rounds: int, device: str) -> dict[str, float]:
    """Median milliseconds per step; slow references get few rounds."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        for _ in range(7):
            step()
    for i in range(rounds):
        for name, step in steps.items():
            if "reference" not in name or i < 3:
                times[name].append(seconds(step, device))
    return {name: 1e3 * statistics.median(values) for name, values in times.items()}


def forward_backward(net: nn.Module, device: str) -> float:
    x, y = torch.randn(BATCH, 3, 32, 32, device=device), torch.randint(10, (BATCH,), device=device)
    work = lambda: nn.functional.cross_entropy(net(x), y).backward()  # noqa: E731
    for _ in range(2):
        work()
    return 1e3 * statistics.median(seconds(work, device) for _ in range(3 if device == "cpu" else 20))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    net = network(options.device)
    steps = contenders(net)
    eager = measure(steps, options.rounds, options.device)
    graphs: dict[str, float] = {}
    if options.device == "cuda":
        capturable = {name: captured(step) for name, step in steps.items() if "reference" not in name}
        graphs = measure(capturable, options.rounds, options.device)
    whole = forward_backward(net, options.device)
    base = "SGD (torch, foreach)"
    hardware = device_name(options.device)
    print(f"{date.today()}  {hardware}  torch {torch.__version__}  median of {options.rounds} rounds")
    print(f"forward-backward, ResNet-18, batch {BATCH}, float32: {whole:.1f} ms")
    columns = f"{'ms/step':>9} {'x SGD':>7} {'% of fw-bw':>11}" + (f" {'graph ms':>9} {'x SGD':>7}" if graphs else "")
    print(f"{'':44}{columns}")
    for name, ms in eager.items():
        line = f"{name:44}{ms:9.2f} {ms / eager[base]:7.2f} {100 * ms / whole:11.2f}"
        if name in graphs:
            line += f" {graphs[name]:9.3f} {graphs[name] / graphs[base]:7.2f}"
        print(line)
    if options.json:
        result = {
            "date": str(date.today()), "hardware": hardware, "torch": torch.__version__,
            "command": "python benchmarks/optimizer.py", "rounds": options.rounds,
            "forward_backward_ms": whole, "step_ms": eager, "graph_ms": graphs,
        }  # fmt: skip
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
