"""Measures one network, whole and compressed, in the runtimes of devices: bytes, milliseconds on one thread, accuracy.

    python benchmarks/deployment.py [--recipe digits-resnet-sizes] [--filters 0.7] [--rounds 300]

The network is trained once, compressed, exported to every format, and quantised. All of them then compute one image at a time,
and take turns, round after round, so that a slow moment of the machine falls on all of them; medians over the rounds are
reported, and how many times faster they are than the whole network in torch. Every file is evaluated by its runtime on all test
images.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from shared import RESULTS, Step, markdown_table, median_milliseconds, write_record
from sparsefw.compression import quantise
from sparsefw.compression.artifact.export.checked import Runner
from sparsefw.compression.artifact.export.executorch import LARGEST_BATCH, load_executorch
from sparsefw.compression.artifact.export.formats import FORMATS
from sparsefw.compression.artifact.export.onnx import load_onnx
from sparsefw.compression.artifact.export.openvino import load_openvino
from sparsefw.compression.artifact.export.runtime_network import RuntimeNetwork
from sparsefw.compression.recovery.batches import first_items
from sparsefw.compression.structure.layers import call, evaluating
from sparsefw.environment import environment
from sparsefw.train import fit, load_recipe
from sparsefw.train.evaluate_run import TrainedRun

PACKAGES = ("torch", "onnxruntime", "openvino", "executorch", "torchao")
# Quantised network -> what runs it. OpenVINO reads the int8 file of onnxruntime.
INT8 = (
    ("onnxruntime", "onnxruntime", load_onnx, None),
    ("onnxruntime", "openvino", load_openvino, None),
    ("executorch", "executorch", load_executorch, LARGEST_BATCH),
)


@dataclass(frozen=True)
class Row:
    """A network in a runtime: the bytes of its files, milliseconds for one image, accuracy in %."""

    network: str
    runtime: str
    numbers: str
    bytes: int
    milliseconds: float
    accuracy: float


@dataclass(frozen=True)
class Candidate:
    """What becomes a row: a call on one image, the network to evaluate, and the bytes of its files."""

    once: Step
    network: nn.Module
    bytes: int


def candidates(
    model: nn.Module, images: torch.Tensor, calibration: Iterable[torch.Tensor], folder: Path
) -> dict[tuple[str, str], Candidate]:
    """Return a network in all runtimes, float and int8."""
    folder.mkdir()
    item = first_items(images, 1)
    weights = sum(t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers()))
    found = {("torch", "float32"): Candidate(lambda: call(model, item), model, weights)}

    def add(runtime: str, numbers: str, runner: Runner, most: int | None, size: int) -> None:
        network = RuntimeNetwork(runner, model, images, most)
        found[runtime, numbers] = Candidate(runner(item), network, size)

    for form in FORMATS.values():
        if form.load is not None:
            path = folder / form.runtime / form.file
            path.parent.mkdir()
            form.write(model, images, path)
            size = sum(file.stat().st_size for file in path.parent.iterdir())
            add(form.runtime, "float32", form.load(path), form.largest_batch, size)
    for backend, runtime, load, most in INT8:
        path = folder / f"{backend}-int8{'.onnx' if load is not load_executorch else '.pte'}"
        if not path.exists():
            path.write_bytes(quantise(model, calibration=calibration, backend=backend).content)
        add(runtime, "int8", load(path), most, path.stat().st_size)
    return found


def measured(networks: dict[str, dict[tuple[str, str], Candidate]], run: TrainedRun, rounds: int) -> list[Row]:
    calls = {
        f"{name} {' '.join(key)}": candidate.once
        for name, variants in networks.items()
        for key, candidate in variants.items()
    }
    with torch.no_grad():
        milliseconds = median_milliseconds(calls, rounds, "cpu", warm_up_each_round=1)
    return [
        Row(
            name,
            *key,
            candidate.bytes,
            milliseconds[f"{name} {' '.join(key)}"],
            run.metrics(candidate.network)[run.task.metric],
        )
        for name, variants in networks.items()
        for key, candidate in variants.items()
    ]


def page(record: dict[str, Any]) -> str:
    """Return the table in Markdown, with what it was measured by."""
    rows = [Row(**row) for row in record["rows"]]
    slowest = rows[0].milliseconds
    cells = [
        [
            row.network,
            row.runtime,
            row.numbers,
            f"{row.bytes:,}",
            f"{row.milliseconds:.3f}",
            f"{slowest / row.milliseconds:.1f}",
            f"{row.accuracy:.1f}",
        ]
        for row in rows
    ]
    header = ["network", "runtime", "numbers", "bytes", "ms", "times faster", "accuracy, %"]
    versions = ", ".join(f"{name} {number}" for name, number in record["packages"].items())
    return (
        f"Written by `{record['command']}` on {record['date']}, {record['hardware']['cpu']}, one thread of "
        f"{record['hardware']['cpus']}, {versions}; one training, seed 0. Milliseconds for one image, median of "
        f"{record['rounds']} rounds in one process on a machine that other work shared; bytes of torch: its tensors.\n\n"
        f"{markdown_table(header, cells)}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", default="digits-resnet-sizes")
    parser.add_argument("--filters", type=float, default=0.7, help="the fraction of filters that is removed")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--out", type=Path, default=RESULTS / "deployment-cpu", help="without its ending")
    parser.add_argument("--set", action="append", default=[], dest="changes", help="a change to the recipe")
    args = parser.parse_args()
    from executorch.extension.pybindings import _C

    torch.set_num_threads(1)
    _C._unsafe_reset_threadpool(1)  # before the first network is loaded
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        fit(load_recipe(args.recipe, args.changes, seed=0), folder / "run", quiet=True)
        run = TrainedRun.open(folder / "run", device="cpu")
        small = run.compress(filters=args.filters, progress=False)
        calibration = list(run.calibration(run.calibration_images(None)))
        images = first_items(calibration[0], 2)
        networks = {"whole": run.model, f"{args.filters:.0%} of the filters removed": small.model}
        with evaluating(run.model), evaluating(small.model):
            files = {
                name: candidates(network, images, calibration, folder / str(number))
                for number, (name, network) in enumerate(networks.items())
            }
            rows = measured(files, run, args.rounds)
    changes = "".join(f" --set {change}" for change in args.changes)
    record = {
        **environment(),
        "command": f"python benchmarks/deployment.py --recipe {args.recipe} --filters {args.filters}{changes}",
        "packages": {name: version(name) for name in PACKAGES},
        "rounds": args.rounds,
        "calibration": sum(map(len, calibration)),
        "rows": list(map(asdict, rows)),
    }
    write_record(args.out.with_suffix(".json"), record)
    args.out.with_suffix(".md").write_text(page(record))
    print(page(record))


if __name__ == "__main__":
    main()
