"""CPU seconds and peak memory of compress(filters=0.5), each network in a process of its own.

python benchmarks/compress_time.py [--only NAME ...] [--source FOLDER] [--before FOLDER] [--json FILE]

The networks are those of the tests' zoo, and by name those of foreign_networks.py.

The seconds are those of one CPU core, which other processes on the machine lengthen little. The peak is what compress takes
beside the network itself, as a multiple of its weights; activations are in it, so that it says something of large networks only:
`large` are two of 100 million weights. With --source, the package is imported from that folder, such as that of another version.
With --before, every network is measured with the package of that folder too, right before, and the ratios are written down.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from compression.zoo import ZOO, Architecture, awake, image  # noqa: E402
from foreign_networks import FOREIGN  # noqa: E402
from shared import markdown_table, write_record  # noqa: E402
from sparsefw.compression import compress  # noqa: E402
from sparsefw.compression.structure.layers import call, evaluating  # noqa: E402
from sparsefw.environment import environment  # noqa: E402
from sparsefw.models import build  # noqa: E402

LARGE = (
    Architecture("large resnet101", partial(build, "resnet101", classes=1000, width=96), image(64, 1), 0),
    Architecture("large vit", partial(build, "vit_tiny", width=768, heads=12, depth=14), image(32, 1), 0),
)
NETWORKS = {architecture.name: architecture for architecture in (*ZOO, *LARGE)}
OTHERS = {network.name: network for network in FOREIGN}


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def made(name: str) -> tuple[nn.Module, Any]:
    """Return a network and its inputs."""
    if name in NETWORKS:
        return NETWORKS[name].make(), NETWORKS[name].inputs()
    torch.manual_seed(0)
    model = awake(OTHERS[name].build()).eval()
    return model, OTHERS[name].example(model)


def measured(name: str) -> dict[str, Any]:
    """Return the figures of one network, in this process."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    model, inputs = made(name)
    with evaluating(model):
        call(model, inputs)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    before = peak_bytes()
    gc.collect()  # what the imports left, which else falls into the time of whoever comes next
    started = time.process_time()
    try:
        compress(model, example=inputs, filters=0.5)
        refused = ""
    except ValueError as error:
        refused = str(error)
    seconds = time.process_time() - started
    return {
        "network": name,
        "seconds": round(seconds, 3),
        "weights_mb": round(weights / 1e6, 1),
        "peak_over_weights": round((peak_bytes() - before) / weights, 2),
        "refused": refused,
    }


def in_process(name: str, source: Path) -> dict[str, Any]:
    """Return the figures of one network, measured in a new process that imports the package from this folder."""
    environ = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--one", name]
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[*NETWORKS, *OTHERS], default=list(NETWORKS), metavar="NAME")
    parser.add_argument("--source", type=Path, default=ROOT / "src", help="the folder with the package")
    parser.add_argument("--before", type=Path, help="the folder with the package to compare with")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--one", choices=[*NETWORKS, *OTHERS], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one is not None:
        print(json.dumps(measured(args.one)))
        return
    rows = []
    for name in args.only:
        before = in_process(name, args.before.resolve())["seconds"] if args.before else None
        rows.append(in_process(name, args.source.resolve()))
        if before is not None:
            rows[-1] |= {"seconds_before": before, "ratio": round(rows[-1]["seconds"] / before, 3)}
        print(f"{rows[-1]['seconds']:8.2f} s  {rows[-1].get('ratio', '')} {name}", file=sys.stderr, flush=True)
    seconds = [row["seconds"] for row in rows if not row["refused"]]
    table = [
        (row["network"], f"{row['seconds']:.2f}", f"{row['weights_mb']:.1f}", f"{row['peak_over_weights']:.1f}")
        for row in rows
    ]
    print(markdown_table(("network", "CPU seconds", "weights, MB", "peak / weights"), table))
    summary = {"median_seconds": statistics.median(seconds), "worst_seconds": max(seconds)} if seconds else {}
    ratios = [row["ratio"] for row in rows if "ratio" in row]
    summary |= {"median_ratio": statistics.median(ratios), "worst_ratio": max(ratios)} if ratios else {}
    print(", ".join(f"{key.replace('_', ' ')} {value:.2f}" for key, value in summary.items()))
    if args.json:
        write_record(args.json, {**environment(), **summary, "rows": rows})


if __name__ == "__main__":
    main()
