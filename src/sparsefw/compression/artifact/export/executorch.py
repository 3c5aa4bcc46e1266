"""ExecuTorch files (.pte), for phones and small devices; its backend XNNPACK runs what it can, portable kernels the rest.

The memory of a file is planned when it is written, so the number of items in a batch is free up to a largest one only.
"""

from __future__ import annotations

import contextlib
import copy
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from sparsefw.atomic_io import naming
from sparsefw.compression.artifact.export.checked import (
    TOLERANCE,
    ExportError,
    Runner,
    checked_gap,
    imported,
    require,
    written,
)
from sparsefw.compression.artifact.export.program import traced
from sparsefw.compression.artifact.export.tracing import layer_of, model_on_cpu, quiet
from sparsefw.compression.recovery.batches import first_items
from sparsefw.compression.structure.layers import evaluating, is_channels_last
from sparsefw.text import first_line

EXTRA = "executorch"
LARGEST_BATCH = 8  # memory for as many is set aside wherever the file is loaded
CHECKED_ITEMS = 2  # of the example: a batch of three times as many is checked, too


def export_executorch(
    model: nn.Module, example: Any, path: str | os.PathLike[str], *, tolerance: float = TOLERANCE
) -> float:
    """Write an ExecuTorch file (.pte) for batches of 1 to 8 items.

    Args:
        model: The network.
        example: An input with a batch axis.
        path: The file to write.
        tolerance: The largest accepted gap; ExportError beyond it.

    Returns:
        The largest difference between ExecuTorch and the model, relative to the outputs.
    """
    with written(path, model) as aside:
        return write_executorch(model, example, aside, tolerance)


def write_executorch(model: nn.Module, example: Any, path: Path, tolerance: float = TOLERANCE) -> float:
    """Write an ExecuTorch file, which a full disk or a kill leaves incomplete; return the gap of export_executorch."""
    few = few_items(example)
    plain = plain_model(model)
    with evaluating(plain), quiet():
        content = lowered(traced_for_a_device(plain, few))
    with naming(path):
        path.write_bytes(content)
    return checked_gap(model, few, load_executorch(path), "ExecuTorch", tolerance)


def few_items(example: Any) -> Any:
    """Return the first items of an example on the CPU: three times as many are within the largest batch."""
    return tree_map(lambda t: _plain(t) if isinstance(t, Tensor) else t, first_items(example, CHECKED_ITEMS))


def plain_model(model: nn.Module) -> nn.Module:
    """Return the model on the CPU with no weight stored channels last, which XNNPACK's lowering does not take."""
    if any(is_channels_last(p) for p in model.parameters()):
        return copy.deepcopy(model).cpu().to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    return model_on_cpu(model)


def traced_for_a_device(model: nn.Module, example: Any) -> Any:
    """Return the torch.export program of a network for batches of at most LARGEST_BATCH."""
    return traced(model, example, torch.export.Dim.DYNAMIC(min=1, max=LARGEST_BATCH))


def lowered(program: Any) -> bytes:
    """Return the content of an ExecuTorch file; ExportError, with the layer, where the runtime lacks an operator."""
    runtime = _runtime()
    exir = imported("executorch.exir", EXTRA)
    xnnpack = imported("executorch.backends.xnnpack.partition.xnnpack_partitioner", EXTRA)
    with quiet():
        try:
            # Operators that are none of the core are looked for in the runtime below, which may have them.
            settings = exir.EdgeCompileConfig(_check_ir_validity=False)
            lower = exir.to_edge_transform_and_lower
            edge = lower(program, partitioner=[xnnpack.XnnpackPartitioner()], compile_config=settings)
            _require_operators(edge.exported_program().graph.nodes, runtime)
            return bytes(edge.to_executorch().buffer)
        except ExportError:
            raise
        except Exception as error:
            raise ExportError(
                f"the model cannot be exported to ExecuTorch: {type(error).__name__}: {first_line(error)}"
            ) from error


def load_executorch(network: Path | bytes) -> Runner:
    """Load a network, a file or its content, into ExecuTorch's runtime.

    It has the runtime's own number of threads, which cannot be changed without breaking networks that are loaded already.
    """
    runtime = _runtime()
    threads_of_executorch()  # starts them, and looks at the CPU, which is then no part of the first run
    with contextlib.redirect_stderr(io.StringIO()):  # what it logs while it starts
        method = runtime.load_program(network).load_method("forward")
    if method is None:
        raise ExportError("ExecuTorch's runtime finds no network in the file")

    def prepared(inputs: Any) -> Callable[[], Any]:
        tensors = [_plain(t) for t in tree_leaves(inputs) if isinstance(t, Tensor)]
        return lambda: method.execute(tensors)

    return prepared


def threads_of_executorch() -> int:
    """Return how many threads ExecuTorch's runtime computes with."""
    with contextlib.redirect_stderr(io.StringIO()):  # what it logs while it starts
        return int(imported("executorch.extension.pybindings._C", EXTRA)._threadpool_get_thread_count())


def _plain(tensor: Tensor) -> Tensor:
    """Return a tensor on the CPU in the order of its axes: with one channel, channels last passes for it, by other strides."""
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())


def _runtime() -> Any:
    require("torchao", extra=EXTRA)
    return imported("executorch.runtime", EXTRA).Runtime.get()


def _require_operators(nodes: Any, runtime: Any) -> None:
    """Raise ExportError if a node calls an operator that the runtime has no kernel for."""
    known = {name.partition(".")[0] for name in runtime.operator_registry.operator_names}
    for node in nodes:
        schema = getattr(node.target, "_schema", None)
        if node.op == "call_function" and schema is not None and not _is_known(schema.name, known):
            raise ExportError(f"ExecuTorch's runtime has no operator {schema.name} (in {layer_of(node)})")


def _is_known(operator: str, known: set[str]) -> bool:
    """Return whether the runtime has an operator, by its name or by that of the copy that replaces a view."""
    return {operator, f"{operator}_copy"} & known != set() or not operator.startswith("aten::")
