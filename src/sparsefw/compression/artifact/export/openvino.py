"""OpenVINO files (.xml, with the weights in a .bin beside it), with a free batch size."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sparsefw.atomic_io import fsync, naming
from sparsefw.compression.artifact.export.checked import (
    TOLERANCE,
    ExportError,
    Runner,
    arrays_of,
    checked_gap,
    imported,
    written,
)
from sparsefw.compression.artifact.export.program import traced
from sparsefw.compression.artifact.export.tracing import model_on_cpu, on_cpu, quiet, users_of
from sparsefw.compression.structure.layers import evaluating
from sparsefw.text import first_line, listed

EXTRA = "openvino"
WEIGHTS = ".bin"


def export_openvino(
    model: nn.Module, example: Any, path: str | os.PathLike[str], *, tolerance: float = TOLERANCE
) -> float:
    """Write an OpenVINO network with a free batch size: a file .xml, and its weights beside it in one of the same name, .bin.

    Args:
        model: The network.
        example: An input with a batch axis.
        path: The file to write, which ends in .xml.
        tolerance: The largest accepted gap; ExportError beyond it.

    Returns:
        The largest difference between OpenVINO and the model, relative to the outputs.
    """
    target = Path(path)
    if target.suffix != ".xml":
        raise ExportError(
            f"{target}: the name of an OpenVINO file ends in .xml, such as {target.with_suffix('.xml').name}"
        )
    with written(target, model) as aside:
        gap = write_openvino(model, example, aside, tolerance)
        fsync(aside.with_suffix(WEIGHTS))
        target.unlink(missing_ok=True)  # never beside the weights of another network, not even after a kill
        os.replace(aside.with_suffix(WEIGHTS), target.with_suffix(WEIGHTS))
    return gap


def write_openvino(model: nn.Module, example: Any, path: Path, tolerance: float = TOLERANCE) -> float:
    """Write an OpenVINO network, which a full disk or a kill leaves incomplete; return the gap of export_openvino."""
    openvino = imported("openvino", EXTRA)
    example = on_cpu(example)
    on_the_cpu = model_on_cpu(model)
    with evaluating(on_the_cpu), quiet():
        program = traced(on_the_cpu, example)
        try:
            network = openvino.convert_model(program)
        except Exception as error:
            raise ExportError(_refusal(error, program)) from error
        _restore_shapes(openvino, network, example)
        with naming(path):
            try:
                openvino.save_model(network, path, compress_to_fp16=False)
            except RuntimeError as error:
                raise ExportError(f"OpenVINO cannot write {path.name}: {first_line(error)}") from error
    return checked_gap(model, example, load_openvino(path), "OpenVINO", tolerance)


def load_openvino(path: Path) -> Runner:
    """Load a file, of OpenVINO or ONNX, for the CPU in the precision of its weights, with as many threads as torch."""
    openvino = imported("openvino", EXTRA)
    settings = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(path, "CPU", settings)
    request = compiled.create_infer_request()
    outputs = range(len(compiled.outputs))

    def prepared(inputs: Any) -> Callable[[], Any]:
        arrays = arrays_of(inputs)
        if len(arrays) != len(compiled.inputs):
            raise ExportError(f"OpenVINO's network takes {len(compiled.inputs)} tensors, the model {len(arrays)}")

        def once() -> list[Any]:
            results = request.infer(arrays)
            return [results[number] for number in outputs]

        return once

    return prepared


def _restore_shapes(openvino: Any, network: Any, example: Any) -> None:
    """Write the axes of the example, all but the first, into the inputs: the conversion leaves every one free."""
    arrays = arrays_of(example)
    if len(arrays) == len(network.inputs):
        shapes = {
            entry: openvino.PartialShape([-1, *array.shape[1:]])
            for entry, array in zip(network.inputs, arrays, strict=True)
            if array.ndim
        }
        network.reshape(shapes)


def _refusal(error: Exception, program: Any) -> str:
    """Return why a program cannot be converted: the operators that OpenVINO lacks, with the layers that use them."""
    missing = re.search(r"No conversion rule found for operations: (.*)", str(error))
    if missing is None:
        return f"the model cannot be exported to OpenVINO: {type(error).__name__}: {first_line(error)}"
    lacking = []
    nodes = [*program.graph.nodes, *program.run_decompositions().graph.nodes]  # OpenVINO names what it made of some
    for operator in re.split(r",\s*", missing.group(1).strip()):
        layers = users_of(operator, nodes)
        lacking.append(f"{operator} (in {listed(layers)})" if layers else operator)
    return f"OpenVINO has no operator for {', '.join(lacking)}"
