"""Writes docs/support.md: which architectures can be compressed, and how, as the trials of the tests' zoo show.

python benchmarks/support_matrix.py [--only NAME ...] [--output FILE]
"""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import re
import sys
import tempfile
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import torch
from torch import nn

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from compression.zoo import FILTERS, KINDS, RANK, ZOO, Architecture, Trial, attempt, share_removable  # noqa: E402
from shared import markdown_table  # noqa: E402
from sparsefw.compression import compress  # noqa: E402
from sparsefw.compression.artifact.export import ExportError, export_onnx  # noqa: E402
from sparsefw.compression.preparation import prepared  # noqa: E402
from sparsefw.compression.reasons import Cause  # noqa: E402
from sparsefw.compression.structure.removal import removable_channels  # noqa: E402

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
        note = f" ({self.architecture.note})" if self.architecture.note else ""
        kinds = [_cell(kind, self.trials[kind]) for kind in KINDS]
        return [self.architecture.name + note, f"{self.removable:.0%}", *kinds, self.onnx, self._untouched()]

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", help="names of architectures; default: all")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "support.md")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for architecture in ZOO:
        if args.only and architecture.name not in args.only:
            continue
        if architecture.missing:
            raise SystemExit(f"{architecture.name}: {architecture.missing}")
        rows.append(examine(architecture).cells())
        print(" | ".join(rows[-1]), flush=True)
    text = INTRODUCTION.format(day=date.today(), versions=versions(), tolerance=TOLERANCE)
    args.output.write_text(text + markdown_table(COLUMNS, rows) + "\n")


if __name__ == "__main__":
    main()
