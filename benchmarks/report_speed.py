"""How long `sparsefw report` takes for 500 runs, and how large its page is.

    python benchmarks/report_speed.py [--runs N] [--json FILE]

Made-up runs of 13 methods, 100 epochs each, with the spectra of 20 layers: five seeds of every method with curves of three kinds
on test images, all others as a sweep makes them, with one curve on validation images.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from sparsefw.environment import device_name, environment

METHODS = ("sgd", "sparsefw", "ssl", "glt", "abfp", "sfp", "nuc", "svdenergy", "fr", "trp", "scion", "sam", "cram")
RATIOS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.97, 0.98)
KINDS = ("filters", "rank", "weights")
SEEDS, EPOCHS, LAYERS = 5, 100, 20


def made_up(folder: Path, number: int) -> None:
    """Run `number` of the benchmark, as `sparsefw train` and `sparsefw curve` leave it."""
    chance = random.Random(number)
    tested = number < SEEDS * len(METHODS)
    method = METHODS[number % len(METHODS)]
    setting = {"strength": 1e-3, "threshold": 0.1} if tested else {
        "strength": 10.0 ** -chance.randint(1, 5), "threshold": chance.choice((0.05, 0.1, 0.2, 0.4))
    }  # fmt: skip
    own = {} if method == "sgd" else {"k": 0.1, "w": 2.0, **setting}
    curves = [_curve(chance, kind, "test") for kind in KINDS] if tested else [_curve(chance, "filters", "validation")]
    config = {
        "name": f"cifar10-resnet18-{method}",
        "seed": number // len(METHODS) if tested else 0,
        "data": {"name": "cifar10", "batch_size": 128, "validation": 0.1, "augment": {"crop": 4, "flip": True}},
        "model": {"name": "resnet18", "arguments": {"stem": "cifar"}, "weights": None},
        "method": {"name": method, **own},
        "train": {"epochs": EPOCHS, "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4, "schedule": {"kind": "linear"}},
        "engine": {"device": "auto", "precision": "auto", "compile": None, "checkpoint_seconds": 60.0},
        "curve": {"kind": None, "at": list(RATIOS), "calibration": 4096},
    }
    (folder / "curves").mkdir(parents=True)
    (folder / "curves-validation").mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    with (folder / "metrics.jsonl").open("w") as file:
        for epoch in range(1, EPOCHS + 1):
            value = 95 - 60 * math.exp(-epoch / 10) + chance.gauss(0, 0.3)
            seen = {"train": {"loss": 0.1, "accuracy": value}, "validation": {"loss": 0.1, "accuracy": value - 1}}
            row = {"epoch": epoch, "step": 390 * epoch, "seconds": 10.0 * epoch, "images_per_second": 5e4, "lr": 0.1}
            file.write(json.dumps({**row, **seen}) + "\n")
    final = {"metric": "accuracy", "validation": {"accuracy": 94.0}, "test": {"accuracy": 93.9}, "seconds": 1000.0}
    (folder / "result.json").write_text(json.dumps(final))
    (folder / "environment.json").write_text(json.dumps(environment()))
    for curve in curves:
        place = "curves" if curve["split"] == "test" else "curves-validation"
        (folder / place / f"{curve['kind']}-removed.json").write_text(json.dumps(curve))
    values = [chance.random() for _ in range(48)]
    spectrum = {"count": 512, "index": list(range(0, 480, 10)), "value": sorted(values, reverse=True)}
    layers = {f"layer{i}.conv": {"filters": spectrum, "singular values": spectrum} for i in range(LAYERS)}
    (folder / "spectra.json").write_text(json.dumps({"layers": layers, "left_out": {}}))


def _curve(chance: random.Random, kind: str, split: str) -> dict[str, Any]:
    whole = {"parameters": 11_173_962, "macs": 555_422_720, "bytes": 44_700_000}
    points = [
        {
            "ratio": ratio,
            "plain": 94 - 80 * ratio**6 + chance.gauss(0, 1),
            "refit": 94 - 40 * ratio**6 + chance.gauss(0, 1),
            "distance": ratio,
            "costs": {key: int(value * (1 - ratio) ** 2) for key, value in whole.items()},
            "milliseconds": 10 * (1 - ratio) + 1,
        }
        for ratio in RATIOS
    ]
    about = {"kind": kind, "form": "removed", "metric": "accuracy", "split": split, "calibration": 4096}
    return {**about, "dense": 94.0, "dense_costs": whole, "dense_milliseconds": 11.0, "points": points}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for number in range(given.runs):
            made_up(folder / "runs" / f"{number:04}", number)
        command = [sys.executable, "-m", "sparsefw", "report", str(folder / "runs"), "-o", str(folder / "report.html")]
        begin = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        seconds, used = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = used.ru_utime + used.ru_stime
        megabytes = (folder / "report.html").stat().st_size / 1e6
        files = len([file for file in (folder / "report_files").rglob("*") if file.is_file()])
    print(
        f"{given.runs} runs: {seconds:.1f} s ({cpu:.1f} s of CPU time), a page of {megabytes:.1f} MB, {files} other files"
    )
    found = {
        "runs": given.runs,
        "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu, 2),
        "load": round(os.getloadavg()[0], 1),
        "page_megabytes": round(megabytes, 2),
        "files": files,
    }
    if given.json:
        about = {
            "command": f"python benchmarks/report_speed.py --runs {given.runs}",
            "device": device_name("cpu"),
            **environment(),
        }
        given.json.write_text(json.dumps({**found, **about}, indent=1) + "\n")


if __name__ == "__main__":
    main()
