"""The formats that a network is exported to: which file each writes, and by which runtime it is run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from sparsefw.compression.artifact.export.checked import Runner
from sparsefw.compression.artifact.export.executorch import LARGEST_BATCH, load_executorch, write_executorch
from sparsefw.compression.artifact.export.onnx import load_onnx, write_onnx
from sparsefw.compression.artifact.export.openvino import load_openvino, write_openvino
from sparsefw.compression.artifact.export.program import write_program


@dataclass(frozen=True)
class Format:
    """A format of exported networks.

    file      its name in the folder of an artifact
    write     writes a model and an example to a path, and returns the gap to its runtime's outputs; None: not compared
    runtime   what runs it
    load      loads a file into its runtime; None: torch itself
    largest_batch   the number of items that it takes at once; None: any
    """

    file: str
    write: Callable[[nn.Module, Any, Path], float | None]
    runtime: str
    load: Callable[[Path], Runner] | None = None
    largest_batch: int | None = None


# By the option of `save` and of the command line.
FORMATS: dict[str, Format] = {
    "onnx": Format("model.onnx", write_onnx, "onnxruntime", load_onnx),
    "program": Format("model.pt2", write_program, "torch"),
    "openvino": Format("model.xml", write_openvino, "openvino", load_openvino),
    "executorch": Format("model.pte", write_executorch, "executorch", load_executorch, LARGEST_BATCH),
}
