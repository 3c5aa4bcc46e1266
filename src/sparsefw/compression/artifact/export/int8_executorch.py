"""int8 in ExecuTorch files: torchao quantises the torch.export program for XNNPACK, by ranges measured on calibration inputs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from sparsefw.compression.artifact.export.checked import ExportError, imported
from sparsefw.compression.artifact.export.executorch import (
    EXTRA,
    few_items,
    lowered,
    plain_model,
    traced_for_a_device,
)
from sparsefw.compression.artifact.export.program import traced
from sparsefw.compression.artifact.export.tracing import quiet
from sparsefw.compression.structure.layers import call_on_copy, evaluating
from sparsefw.text import first_line

QUANTIZER = "executorch.backends.xnnpack.quantizer.xnnpack_quantizer"


def int8_executorch(model: nn.Module, example: Any, inputs: Iterable[Any]) -> bytes:
    """Return the content of an ExecuTorch file whose layers compute in int8: weights per channel, activations per tensor.

    Args:
        model: The network.
        example: An input with a batch axis.
        inputs: Batches, whose activations give the ranges.
    """
    steps = imported("torchao.quantization.pt2e.quantize_pt2e", EXTRA)
    xnnpack = imported(QUANTIZER, EXTRA)
    few = few_items(example)
    plain = plain_model(model)
    with evaluating(plain), quiet():
        network = traced(plain, few).module()
        try:
            quantizer = xnnpack.XNNPACKQuantizer()
            quantizer.set_global(xnnpack.get_symmetric_quantization_config(is_per_channel=True))
            observed = steps.prepare_pt2e(network, quantizer)
            for batch in inputs:
                call_on_copy(observed, batch)
            quantised = steps.convert_pt2e(observed)
        except Exception as error:
            raise ExportError(
                f"torchao cannot quantise the model: {type(error).__name__}: {first_line(error)}"
            ) from error
        return lowered(traced_for_a_device(quantised, few))
