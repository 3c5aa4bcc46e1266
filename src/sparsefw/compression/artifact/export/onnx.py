"""ONNX files, with a free batch size; onnxruntime runs them."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sparsefw.atomic_io import naming
from sparsefw.compression.artifact.export.checked import (
    TOLERANCE,
    ExportError,
    Runner,
    arrays_of,
    checked_gap,
    require,
    require_batch,
    written,
)
from sparsefw.compression.artifact.export.failure import reason_of
from sparsefw.compression.artifact.export.tracing import (
    at_least_two,
    free_batch,
    model_on_cpu,
    on_cpu,
    quiet,
    traced_arguments,
)
from sparsefw.compression.structure.layers import evaluating


def export_onnx(model: nn.Module, example: Any, path: str | os.PathLike[str], *, tolerance: float = TOLERANCE) -> float:
    """Write an ONNX file with a dynamic batch.

    Args:
        model: The network.
        example: An input with a batch axis.
        path: The file to write.
        tolerance: The largest accepted gap; ExportError beyond it.

    Returns:
        The largest difference between onnxruntime and the model, relative to the outputs.
    """
    with written(path, model) as aside:
        return write_onnx(model, example, aside, tolerance)


def write_onnx(model: nn.Module, example: Any, path: Path, tolerance: float = TOLERANCE) -> float:
    """Write an ONNX file, which a full disk or a kill leaves incomplete; return the gap of export_onnx."""
    program = _onnx_program(model, example)
    with naming(path):
        program.save(str(path), external_data=False)
    return checked_gap(model, example, load_onnx(path), "onnxruntime", tolerance)


def onnx_session(model: nn.Module, inputs: Any) -> Callable[[], Any]:
    """Return a function that runs the model once in onnxruntime on these inputs, with as many threads as torch."""
    return load_onnx(onnx_content(model, inputs))(inputs)


def onnx_content(model: nn.Module, example: Any) -> bytes:
    """Return the content of an ONNX file, unchecked."""
    return bytes(_onnx_program(model, example).model_proto.SerializeToString())


def _onnx_program(model: nn.Module, example: Any) -> Any:
    require("onnx", "onnxscript", extra="export")
    require_batch(example)
    with evaluating(model), quiet():
        try:
            args, kwargs = traced_arguments(model, on_cpu(at_least_two(example)))
            program = torch.onnx.export(
                model_on_cpu(model),
                args,
                kwargs=kwargs,
                dynamo=True,
                dynamic_shapes=free_batch(args, kwargs, "batch"),
                verbose=False,
                optimize=True,
            )
        except Exception as error:
            raise ExportError(f"the model cannot be exported to ONNX: {reason_of(error, model, example)}") from error
    assert program is not None
    return program


def load_onnx(network: Path | bytes) -> Runner:
    """Load a network, a file or its content, into onnxruntime, with as many threads as torch."""
    session = _session(network if isinstance(network, bytes) else str(network))
    names = [node.name for node in session.get_inputs()]

    def prepared(inputs: Any) -> Callable[[], Any]:
        feed = dict(zip(names, arrays_of(inputs), strict=True))
        return lambda: session.run(None, feed)

    return prepared


def _session(network: str | bytes) -> Any:
    """Return a session of a network: the path of its file, or its content."""
    require("onnxruntime", extra="export")
    onnxruntime = importlib.import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    # Idle threads spin by default and would slow the next measurement, of another session or of torch.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(network, options, providers=["CPUExecutionProvider"])
