"""int8 in ONNX files: weights per channel and activations per tensor, by ranges measured on calibration inputs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from torch import nn

from sparsefw.compression.artifact.export.checked import ExportError, arrays_of, imported, require
from sparsefw.compression.artifact.export.onnx import onnx_content
from sparsefw.compression.artifact.export.tracing import quiet
from sparsefw.text import first_line


def int8_onnx(model: nn.Module, example: Any, inputs: Iterable[Any]) -> bytes:
    """Return the content of an ONNX file whose layers compute in int8, between pairs of QuantizeLinear and DequantizeLinear.

    Args:
        model: The network.
        example: An input with a batch axis.
        inputs: Batches, whose activations give the ranges.
    """
    require("onnx", "onnxscript", "onnxruntime", extra="export")
    quantization = imported("onnxruntime.quantization", "export")
    shapes = imported("onnxruntime.quantization.shape_inference", "export")
    with tempfile.TemporaryDirectory() as folder, quiet():
        plain, prepared, small = (Path(folder) / name for name in ("plain.onnx", "prepared.onnx", "int8.onnx"))
        plain.write_bytes(onnx_content(model, example))
        try:
            # Merges batch norms into their convolutions, which onnxruntime would else do only to the float network.
            shapes.quant_pre_process(plain, prepared, skip_symbolic_shape=True)
            quantization.quantize_static(
                prepared,
                small,
                _reader(quantization, prepared, inputs),
                quant_format=quantization.QuantFormat.QDQ,
                per_channel=True,
                activation_type=quantization.QuantType.QInt8,
                weight_type=quantization.QuantType.QInt8,
            )
        except Exception as error:
            raise ExportError(
                f"onnxruntime cannot quantise the model: {type(error).__name__}: {first_line(error)}"
            ) from error
        return small.read_bytes()


def _reader(quantization: Any, network: Path, inputs: Iterable[Any]) -> Any:
    """Return the inputs as onnxruntime's quantisation reads them."""
    names = [node.name for node in imported("onnx", "export").load(str(network)).graph.input]

    class Reader(quantization.CalibrationDataReader):
        def __init__(self) -> None:
            self.batches: Iterator[Any] = iter(inputs)

        def get_next(self) -> dict[str, Any] | None:
            for batch in self.batches:
                return dict(zip(names, arrays_of(batch), strict=True))
            return None

    return Reader()
