"""Writes docs/support.md: which architectures can be compressed, and how, as the trials of the tests' zoo show.

python benchmarks/support_matrix.py [--only NAME ...] [--output FILE]

With --only, the rows of these networks are written anew into the file, and the others stay.
"""

from __future__ import annotations

import argparse
import collections
import importlib.metadata
import platform
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import torch
from torch import nn

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from compression.zoo import FILTERS, KINDS, RANK, ZOO, Architecture, Trial, attempt, awake, share_removable  # noqa: E402
from foreign_networks import FOREIGN, Foreign  # noqa: E402
from shared import markdown_table  # noqa: E402
from sparsefw.compression import compress  # noqa: E402
from sparsefw.compression.artifact.export import ExportError, export_onnx  # noqa: E402
from sparsefw.compression.preparation import prepared  # noqa: E402
from sparsefw.compression.reasons import Cause  # noqa: E402
from sparsefw.compression.structure.removal import removable_channels  # noqa: E402

MORE = """
## More networks

{count} networks of torchvision, timm and transformers, as their libraries build them (`benchmarks/foreign_networks.py`): small
configurations of transformers, published sizes of the others, at 64 pixels where they take any size. *kept* are the parameters
left at `filters=0.5`, *gap* is that between the smaller network and the dense one with the same channels silent, and *s* are
seconds of one CPU core. Where all channels can go, a quarter of the parameters is left, plus what writes the output.
On average {removed:.0%} of the parameters are removed; a network that is refused counts as 0.

"""
MORE_COLUMNS = ("network", "parameters", "kept", "gap", "s", "left as it is, or why it is refused")
PACKAGES = ("torch", "torchvision", "timm", "transformers", "onnxruntime")
COLUMNS = ("architecture", "removable", "filters=0.5", "rank=0.5", "weights=0.5", "ONNX", "left as it is")
INTRODUCTION = """\
# What can be compressed

Written by `python benchmarks/support_matrix.py` on {day}, with {versions}.
`tests/compression/test_architectures.py` checks the same for the same networks. Some are shallower or narrower than published, as
a note says. All have random weights and random batch norm statistics, and no layer is 0.

- *removable*: the share of channels that can be removed, counted at every layer that writes them.
- *filters*, *rank*: parameters / MACs of the compressed network, as shares of the dense one. Its output differs by less than
  {tolerance:g} of its largest output from the dense network with the same channels silent, or with weights of the same rank.
- *weights*: bytes on disk, as a share of the dense network's.
- *ONNX*: the gap between onnxruntime and the network compressed by filters and rank together, relative to its largest output.
- *left as it is*: the reasons for untouched layers in the plan of filters, except the outputs of the network.

"""
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Row:
    """The trials of one architecture."""

    architecture: Architecture
    removable: float
    trials: dict[str, Trial]
    onnx: str

    def cells(self) -> list[str]:
        kinds = [_cell(kind, self.trials[kind]) for kind in KINDS]
        return [self.architecture.titled, f"{self.removable:.0%}", *kinds, self.onnx, self._untouched()]

    def _untouched(self) -> str:
        """Return the reasons for which channels were not removed."""
        small = self.trials[FILTERS].small
        if small is None:
            return self.trials[FILTERS].refused
        untouched = [u for u in small.plan.untouched if not u.note and u.cause is not Cause.OUTPUT]
        return "; ".join(dict.fromkeys(_without_layer_name(u.reason) for u in untouched)) or "nothing"


def _without_layer_name(reason: str) -> str:
    """Return a reason without the name of the layer.

    "features.0.1 (LayerNorm2d) averages over them" becomes "LayerNorm2d averages over them".
    """
    return re.sub(r"^\S+ \((\w+)\)", r"\1", reason)


def _cell(kind: str, trial: Trial) -> str:
    small = trial.small
    if small is None:
        return "no"
    if kind not in (FILTERS, RANK):
        return f"{small.costs.bytes / small.dense.bytes:.0%}"
    if not trial.gap <= TOLERANCE:
        raise SystemExit(f"{kind}: the compressed network is off by {trial.gap:g}")
    return f"{small.costs.parameters / small.dense.parameters:.0%} / {small.costs.macs / small.dense.macs:.0%}"


def examine(architecture: Architecture) -> Row:
    dense = architecture.make()
    inputs = architecture.inputs()
    trials = {kind: attempt(dense, inputs, **{kind: 0.5}) for kind in KINDS}
    supported = {kind: 0.5 for kind in (FILTERS, RANK) if trials[kind].small is not None}
    onnx = _onnx(compress(dense, example=inputs, **supported).model, inputs) if supported else "nothing to export"
    removable = share_removable(removable_channels(prepared(dense, inputs).model, inputs))
    return Row(architecture, removable, trials, onnx)


def _onnx(small: nn.Module, inputs: object) -> str:
    with tempfile.TemporaryDirectory() as folder:
        try:
            return f"{export_onnx(small, inputs, Path(folder) / 'small.onnx'):.0e}"
        except ExportError as error:
            return str(error)


def versions() -> str:
    texts = [f"Python {platform.python_version()}"]
    for package in PACKAGES:
        try:
            texts.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            texts.append(f"no {package}")
    return ", ".join(texts)


def examine_foreign(network: Foreign) -> list[str]:
    """Return the row of a network."""
    torch.manual_seed(0)
    dense = awake(network.build()).eval()
    inputs = network.example(dense)
    count = sum(p.numel() for p in dense.parameters())
    size = f"{count / 1e6:.1f} M" if count > 1e5 else f"{count / 1e3:.0f} k"
    started = time.process_time()
    trial = attempt(dense, inputs, filters=0.5)
    seconds = time.process_time() - started
    if trial.small is None:
        return [network.name, size, "", "", f"{seconds:.1f}", trial.refused]
    if not trial.gap <= TOLERANCE:
        raise SystemExit(f"{network.name}: the compressed network is off by {trial.gap:g}")
    kept = trial.small.costs.parameters / trial.small.dense.parameters
    untouched = [u for u in trial.small.plan.untouched if not u.note and u.cause is not Cause.OUTPUT]
    reasons = collections.Counter(_without_layer_name(u.reason) for u in untouched)
    left = "; ".join(f"{reason} ({n}x)" for reason, n in reasons.most_common(3)) or "nothing"
    return [network.name, size, f"{kept:.0%}", f"{trial.gap:.0e}", f"{seconds:.1f}", left]


def more_networks(only: Sequence[str], known: Mapping[str, list[str]]) -> str:
    """Return the section about networks of other libraries; known: the rows of networks that are not examined."""
    rows = []
    for network in FOREIGN:
        row = known.get(network.name)
        if row is None or network.name in only:
            row = examine_foreign(network)
            print(" | ".join(row), flush=True)
        rows.append(row)
    removed = [1 - float(kept.rstrip("%")) / 100 if kept else 0.0 for _, _, kept, *_ in rows]
    introduction = MORE.format(count=len(rows), removed=sum(removed) / max(1, len(removed)))
    return introduction + markdown_table(MORE_COLUMNS, rows) + "\n"


def rows_of(text: str) -> dict[str, list[str]]:
    """Return the rows of the tables of a page by their first cells."""
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {cells[0]: cells for cells in lines}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", help="names of architectures whose rows are written anew; default: all")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "support.md")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of the libraries
    known = rows_of(args.output.read_text()) if args.only else {}
    rows = []
    for architecture in ZOO:
        row = known.get(architecture.titled)
        if row is not None and architecture.name not in args.only:
            rows.append(row)
            continue
        if architecture.missing:
            raise SystemExit(f"{architecture.name}: {architecture.missing}")
        rows.append(examine(architecture).cells())
        print(" | ".join(rows[-1]), flush=True)
    text = INTRODUCTION.format(day=date.today(), versions=versions(), tolerance=TOLERANCE)
    text += markdown_table(COLUMNS, rows) + "\n"
    args.output.write_text(text + more_networks(args.only or (), known))


if __name__ == "__main__":
    main()
