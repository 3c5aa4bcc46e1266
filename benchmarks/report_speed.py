"""Measures how long `sparsefw report` takes for 500 runs, and how large its page is.

    python benchmarks/report_speed.py [--runs N] [--json FILE]

The runs are made up: 13 methods, 100 epochs each, spectra of 20 layers. Five seeds of every method have curves of three kinds on
test images; all others have one curve on validation images, as in a sweep.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from shared import write_record
from sparsefw.environment import device_name, environment
from sparsefw.runfolder import EpochWriter, RunFacts, RunKind, RunWriter
from sparsefw.runfolder.schema import (
    ConfigRecord,
    CurveRecord,
    CurveSettings,
    EnvironmentRecord,
    EpochFigures,
    EpochRecord,
    RecordedPoint,
    ResultRecord,
    Size,
    SpectraRecord,
    Spectrum,
)

METHODS = ("sgd", "sparsefw", "ssl", "glt", "abfp", "sfp", "nuc", "svdenergy", "fr", "trp", "scion", "sam", "cram")
RATIOS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.97, 0.98)
KINDS = ("filters", "rank", "weights")
SEEDS = 5
EPOCHS = 100
LAYERS = 20


def write_run(folder: Path, number: int) -> None:
    """Write run `number` of the benchmark, as `sparsefw train` and `sparsefw curve` write runs."""
    chance = random.Random(number)
    tested = number < SEEDS * len(METHODS)
    method = METHODS[number % len(METHODS)]
    strength = 1e-3 if tested else 10.0 ** -chance.randint(1, 5)
    threshold = 0.1 if tested else chance.choice((0.05, 0.1, 0.2, 0.4))
    settings = {} if method == "sgd" else {"k": 0.1, "w": 2.0, "strength": strength, "threshold": threshold}
    curves = [_curve(chance, kind, "test") for kind in KINDS] if tested else [_curve(chance, "filters", "validation")]
    config = {
        "name": f"cifar10-resnet18-{method}",
        "seed": number // len(METHODS) if tested else 0,
        "data": {"name": "cifar10", "batch_size": 128, "validation": 0.1, "augment": {"crop": 4, "flip": True}},
        "model": {"name": "resnet18", "arguments": {"stem": "cifar"}, "weights": None},
        "method": {"name": method, **settings},
        "train": {"epochs": EPOCHS, "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4, "schedule": {"kind": "linear"}},
        "engine": {"device": "auto", "precision": "auto", "compile": None, "checkpoint_seconds": 60.0},
        "curve": {"kind": None, "at": list(RATIOS), "calibration": 4096},
    }
    label = " ".join([method, *(f"{key}={value:g}" for key, value in settings.items())])
    facts = RunFacts(config["name"], RunKind.TRAINED, label, method, config["seed"], "accuracy")
    writer = RunWriter(folder)
    writer.begin(ConfigRecord(config), facts, EnvironmentRecord(**environment()))
    epochs = []
    for epoch in range(1, EPOCHS + 1):
        value = 95 - 60 * math.exp(-epoch / 10) + chance.gauss(0, 0.3)
        figures = EpochFigures({"loss": 0.1, "accuracy": value}, {"loss": 0.1, "accuracy": value - 1})
        epochs.append(EpochRecord(epoch, 390 * epoch, 10.0 * epoch, 5e4, 0.1, figures))
    EpochWriter(folder, 0).append(*epochs)
    writer.result(ResultRecord("accuracy", {"accuracy": 94.0}, {"accuracy": 93.9}, seconds=1000.0))
    for curve in curves:
        writer.curve(curve)
    values = sorted((chance.random() for _ in range(48)), reverse=True)
    spectrum = Spectrum(512, tuple(range(0, 480, 10)), tuple(values))
    layers = {f"layer{i}.conv": {"filters": spectrum, "singular values": spectrum} for i in range(LAYERS)}
    writer.spectra(SpectraRecord(layers))


def _curve(chance: random.Random, kind: str, split: str) -> CurveRecord:
    dense_costs = {"parameters": 11_173_962, "macs": 555_422_720, "bytes": 44_700_000}
    points = []
    for ratio in RATIOS:
        plain = 94 - 80 * ratio**6 + chance.gauss(0, 1)
        refit = 94 - 40 * ratio**6 + chance.gauss(0, 1)
        costs = {key: int(value * (1 - ratio) ** 2) for key, value in dense_costs.items()}
        points.append(RecordedPoint(ratio, plain, refit, Size(**costs, milliseconds=10 * (1 - ratio) + 1), ratio))
    settings = CurveSettings(calibration=4096)
    dense_size = Size(**dense_costs, milliseconds=11.0)
    return CurveRecord(kind, "removed", "accuracy", split, settings, 94.0, dense_size, tuple(points))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for number in range(args.runs):
            write_run(folder / "runs" / f"{number:04}", number)
        command = [sys.executable, "-m", "sparsefw", "report", str(folder / "runs"), "-o", str(folder / "report.html")]
        started = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        seconds = time.perf_counter() - started
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_seconds = usage.ru_utime + usage.ru_stime
        megabytes = (folder / "report.html").stat().st_size / 1e6
        files = len([file for file in (folder / "report_files").rglob("*") if file.is_file()])
    print(
        f"{args.runs} runs: {seconds:.1f} s ({cpu_seconds:.1f} s of CPU time), a page of {megabytes:.1f} MB, "
        f"{files} other files"
    )
    if args.json:
        record = {
            "runs": args.runs,
            "seconds": round(seconds, 2),
            "cpu_seconds": round(cpu_seconds, 2),
            "load": round(os.getloadavg()[0], 1),
            "page_megabytes": round(megabytes, 2),
            "files": files,
            "command": f"python benchmarks/report_speed.py --runs {args.runs}",
            "device": device_name("cpu"),
            **environment(),
        }
        write_record(args.json, record)


if __name__ == "__main__":
    main()
