"""The formats that a network is exported to: which file each writes, and by which runtime it is run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sparsefw.compression.artifact.export.checked import Runner, require
from sparsefw.compression.artifact.export.executorch import (
    LARGEST_BATCH,
    load_executorch,
    threads_of_executorch,
    write_executorch,
)
from sparsefw.compression.artifact.export.onnx import load_onnx, write_onnx
from sparsefw.compression.artifact.export.openvino import load_openvino, write_openvino
from sparsefw.compression.artifact.export.program import write_program


@dataclass(frozen=True)
class Format:
    """A format of exported networks.

    file            its name in the folder of an artifact
    write           writes a model and an example to a path, and returns the gap to its runtime's outputs; None: not compared
    runtime         what runs it
    load            loads a file into its runtime; None: torch itself
    largest_batch   the number of items that it takes at once; None: any
    packages        what writing and running it needs besides torch
    extra           what installs them, in brackets behind sparsefw
    threads         the number that it computes with
    """

    file: str
    write: Callable[[nn.Module, Any, Path], float | None]
    runtime: str
    load: Callable[[Path], Runner] | None = None
    largest_batch: int | None = None
    packages: tuple[str, ...] = ()
    extra: str = ""
    threads: Callable[[], int] = torch.get_num_threads

    def require(self) -> None:
        """Raise ExportError, which names the line for pip, unless the packages that it needs are installed."""
        require(*self.packages, extra=self.extra)


# By the option of `save` and of the command line.
FORMATS: dict[str, Format] = {
    "onnx": Format(
        "model.onnx",
        write_onnx,
        "onnxruntime",
        load_onnx,
        packages=("onnx", "onnxscript", "onnxruntime"),
        extra="export",
    ),
    "program": Format("model.pt2", write_program, "torch"),
    "openvino": Format(
        "model.xml", write_openvino, "openvino", load_openvino, packages=("openvino",), extra="openvino"
    ),
    "executorch": Format(
        "model.pte",
        write_executorch,
        "executorch",
        load_executorch,
        LARGEST_BATCH,
        packages=("executorch", "torchao"),
        extra="executorch",
        threads=threads_of_executorch,
    ),
}
