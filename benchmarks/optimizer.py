"""Measures the time of one optimizer step on the parameters of a ResNet-18: torch's SGD, and SFW on every region.

    python benchmarks/optimizer.py [--device cpu|cuda] [--rounds N] [--json FILE]

The optimizers step the same network in turn, round after round, so that a slow moment of the machine falls on all of them;
ratios are those of the medians. On CUDA each step is also captured in a graph and replayed, as in training. The
forward-backward pass at batch 128 is timed for comparison.
"""

from __future__ import annotations

import argparse
import statistics
from datetime import date
from pathlib import Path

import torch
from torch import nn

from shared import (
    STEP_SETTINGS,
    Step,
    add_random_gradients,
    capture_step,
    default_device,
    elapsed_seconds,
    median_milliseconds,
    write_record,
)
from sparsefw import SFW, Rule, constrain
from sparsefw import geometry as geo
from sparsefw.environment import device_name
from sparsefw.models import build
from sparsefw.optim import ReferenceSFW

BATCH = 128
SGD_NAME = "SGD (torch, foreach)"
REFERENCES = ("filters (group-k-support) k=0.2", "rank (spectral-k-support) k=0.1")  # also timed as ReferenceSFW
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
    model = build("resnet18", classes=10, stem="cifar").to(device)
    add_random_gradients(model)
    return model


def optimizer_steps(model: nn.Module) -> dict[str, Step]:
    """Return the step of every optimizer but the references."""
    steps: dict[str, Step] = {SGD_NAME: torch.optim.SGD(model.parameters(), foreach=True, **STEP_SETTINGS).step}
    for name, rules in REGIONS.items():
        steps[name] = SFW(constrain(model, rules, w=20.0, report=None), **STEP_SETTINGS).step
    return steps


def reference_steps(model: nn.Module) -> dict[str, Step]:
    """Return the steps of the readable reference implementation, which are slow."""
    return {
        f"{name}, reference": ReferenceSFW(constrain(model, REGIONS[name], w=20.0, report=None), **STEP_SETTINGS).step
        for name in REFERENCES
    }


def forward_backward_milliseconds(model: nn.Module, device: str) -> float:
    images = torch.randn(BATCH, 3, 32, 32, device=device)
    labels = torch.randint(10, (BATCH,), device=device)

    def work() -> None:
        nn.functional.cross_entropy(model(images), labels).backward()

    for _ in range(2):
        work()
    rounds = 3 if device == "cpu" else 20
    return 1e3 * statistics.median(elapsed_seconds(work, device) for _ in range(rounds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default=default_device())
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    model = network(args.device)
    steps = optimizer_steps(model)
    references = reference_steps(model)
    eager = median_milliseconds({**steps, **references}, args.rounds, args.device, slow=list(references))
    graphs: dict[str, float] = {}
    if args.device != "cpu":
        captured = {name: capture_step(step) for name, step in steps.items()}
        graphs = median_milliseconds(captured, args.rounds, args.device)
    forward_backward = forward_backward_milliseconds(model, args.device)
    hardware = device_name(args.device)
    print(f"{date.today()}, {hardware}, torch {torch.__version__}, median of {args.rounds} rounds")
    print(f"forward-backward, ResNet-18, batch {BATCH}, float32: {forward_backward:.1f} ms")
    columns = f"{'ms/step':>9} {'x SGD':>7} {'% of fw-bw':>11}" + (f" {'graph ms':>9} {'x SGD':>7}" if graphs else "")
    print(f"{'':44}{columns}")
    for name, ms in eager.items():
        line = f"{name:44}{ms:9.2f} {ms / eager[SGD_NAME]:7.2f} {100 * ms / forward_backward:11.2f}"
        if name in graphs:
            line += f" {graphs[name]:9.3f} {graphs[name] / graphs[SGD_NAME]:7.2f}"
        print(line)
    if args.json:
        record = {
            "date": str(date.today()),
            "hardware": hardware,
            "torch": torch.__version__,
            "command": "python benchmarks/optimizer.py",
            "rounds": args.rounds,
            "forward_backward_ms": forward_backward,
            "step_ms": eager,
            "graph_ms": graphs,
        }
        write_record(args.json, record)


if __name__ == "__main__":
    main()
