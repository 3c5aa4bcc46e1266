"""Measures elastic folders: their size beside the dense weights, how long a size takes to load, and sizes that are not stored.

    python benchmarks/elastic_size.py [--epochs 30] [--seeds 3] [--json FILE]

The folders of a ResNet-18 hold ten plain sizes; its weights are random, because size and time depend on shapes only. Statistics
between stored sizes are judged on digits networks that were trained over sizes: test accuracy with recomputed statistics, with
those of load (interpolated), and with those of the nearest stored size.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor, nn

from shared import elapsed_seconds, markdown_table, write_record
from sparsefw import Sizes, compress, load, save_elastic
from sparsefw.compression.artifact import elastic_folder
from sparsefw.compression.artifact.files import write_tensors
from sparsefw.compression.artifact.statistics import Rows, Statistics, interpolated
from sparsefw.data import load_digits
from sparsefw.environment import device_name
from sparsefw.models import build

KINDS = ("filters", "rank", "weights")
TEN = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
NOT_STORED = 0.73
LOADS = 5
GRIDS = {
    "0.05": [round(0.05 * i, 2) for i in range(1, 20)],
    "0.1": [round(0.1 * i, 1) for i in range(1, 10)],
    "0.2": [0.1, 0.3, 0.5, 0.7, 0.9],
}
BETWEEN = {
    "0.05": (0.325, 0.525, 0.725, 0.825, 0.875),
    "0.1": (0.35, 0.55, 0.75, 0.85),
    "0.2": (0.4, 0.6, 0.8),
}
PEAK_MEMORY = """
import sys, warnings
from pathlib import Path
from sparsefw import load
from sparsefw.models import build

def peak():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])

warnings.simplefilter("ignore")
build("resnet18", width=4)
before = peak()
load(sys.argv[1], **{sys.argv[2]: float(sys.argv[3])})
print(peak() - before)
"""  # a process of its own, on Linux: KiB beyond what the imports take


def folder_row(kind: str, folder: Path) -> dict[str, object]:
    """Save ten sizes of a ResNet-18 by one kind; return bytes, seconds and memory."""
    torch.manual_seed(0)
    model = build("resnet18", classes=10, stem="cifar").eval()
    write_tensors(folder / "dense.safetensors", model.state_dict())
    dense = (folder / "dense.safetensors").stat().st_size
    save_elastic(model, folder / "elastic", kind, TEN, calibration=[torch.randn(64, 3, 32, 32)], refit=False)
    size = sum(path.stat().st_size for path in (folder / "elastic").iterdir())
    seconds = {}
    for ratio in (0.7, NOT_STORED):
        times = [elapsed_seconds(lambda: load(folder / "elastic", **{kind: ratio}), "cpu") for _ in range(LOADS)]  # noqa: B023
        seconds[str(ratio)] = statistics.median(times)
    arguments = [sys.executable, "-c", PEAK_MEMORY, str(folder / "elastic"), kind, str(NOT_STORED)]
    peak = int(subprocess.run(arguments, capture_output=True, text=True, check=True).stdout) / 1024
    return {
        "kind": kind,
        "dense_bytes": dense,
        "folder_bytes": size,
        "plan_bytes": (folder / "elastic" / "plan.json").stat().st_size,
        "larger_by_percent": 100 * (size / dense - 1),
        "load_seconds": seconds,
        "peak_memory_mib": peak,
    }


def trained_over_sizes(seed: int, epochs: int) -> nn.Module:
    """Train a digits network by the loop of sparsefw.compression.sizes."""
    torch.manual_seed(seed)
    images, labels = load_digits()
    model = build("resnet_digits", width=16).train()
    sizes = Sizes(model, "filters", example=images[:2], seed=seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batches = [batch for _ in range(epochs) for batch in torch.randperm(len(images)).split(64)]
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / len(batches))
    for step, batch in enumerate(batches):
        x, y = images[batch], labels[batch]
        half = len(x) // 2
        optimizer.zero_grad()
        with sizes.smaller(sizes.draw(step)):
            (nn.functional.cross_entropy(model(x[:half]), y[:half]) / 2).backward()
        (nn.functional.cross_entropy(model(x[half:]), y[half:]) / 2).backward()
        optimizer.step()
        schedule.step()
    return model.eval()


def nearest(dense: Statistics, larger: Statistics, smaller: Statistics, share: float, rows: Rows) -> Statistics:
    """Return the statistics of the nearer size; a channel that it lacks has those of the larger."""
    return interpolated(dense, larger, smaller, float(round(share)), rows)


@torch.no_grad()
def accuracy(model: nn.Module) -> float:
    images, labels = load_digits("test")
    return 100 * float((model.eval()(images).argmax(1) == labels).float().mean())


def between_rows(epochs: int, seeds: int) -> list[dict[str, object]]:
    """Return the mean accuracy over seeds at ratios between stored ones, by where the statistics are from."""
    calibration: list[Tensor] = list(load_digits().images.split(128))
    found: dict[tuple[str, float], list[tuple[float, float, float]]] = {}
    for seed in range(seeds):
        model = trained_over_sizes(seed, epochs)
        for spacing, at in GRIDS.items():
            with tempfile.TemporaryDirectory() as name:
                save_elastic(model, Path(name) / "e", "filters", at, calibration=calibration, refit=False)
                for ratio in BETWEEN[spacing]:
                    exact = compress(model, filters=ratio, calibration=calibration, refit=False).model
                    on_the_line = load(Path(name) / "e", filters=ratio).model
                    with mock.patch.object(elastic_folder, "interpolated", nearest):
                        of_nearest = load(Path(name) / "e", filters=ratio).model
                    figures = (accuracy(exact), accuracy(on_the_line), accuracy(of_nearest))
                    found.setdefault((spacing, ratio), []).append(figures)
    rows = []
    for (spacing, ratio), figures in found.items():
        means = [statistics.mean(column) for column in zip(*figures, strict=True)]
        rows.append(
            {
                "spacing": spacing,
                "ratio": ratio,
                **dict(zip(("recomputed", "interpolated", "nearest"), means, strict=True)),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    warnings.filterwarnings("ignore", message=".* is not stored")
    folders = []
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as name:
            folders.append(folder_row(kind, Path(name)))
    cells = [
        (row["kind"], f"{row['larger_by_percent']:.2f} %", *(f"{s:.2f}" for s in row["load_seconds"].values()),
         f"{row['peak_memory_mib']:.0f}")
        for row in folders
    ]  # fmt: skip
    print(markdown_table(["kind", "larger by", "load 0.7, s", f"load {NOT_STORED}, s", "peak memory, MiB"], cells))
    between = between_rows(args.epochs, args.seeds)
    cells = [
        (
            row["spacing"],
            f"{row['ratio']:g}",
            *(f"{row[name]:.1f}" for name in ("recomputed", "interpolated", "nearest")),
        )
        for row in between
    ]
    print(markdown_table(["stored every", "filters removed", "recomputed", "interpolated", "nearest"], cells))
    if args.json is not None:
        record = {
            "date": datetime.date.today().isoformat(),
            "device": device_name("cpu"),
            "torch": torch.__version__,
            "loads": LOADS,
            "epochs": args.epochs,
            "seeds": args.seeds,
            "folders": folders,
            "between": between,
        }
        write_record(args.json, record)


if __name__ == "__main__":
    main()
