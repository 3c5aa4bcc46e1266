"""Shapes alone: a network's input as JSON, without its values, and costs counted on tensors that hold no data.

Of whole numbers, such as the words of a text, the range is there too: a table has no row for others.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sparsefw.compression.cost import macs

DTYPES = {str(t): t for t in vars(torch).values() if isinstance(t, torch.dtype)}


def shapes_of(inputs: Any) -> Any:
    """Return the shapes and dtypes of tensors, in the tuples, lists and dictionaries around them; ValueError for other types."""
    if isinstance(inputs, Tensor):
        is_whole = not (inputs.is_floating_point() or inputs.is_complex() or inputs.dtype == torch.bool)
        known = {"shape": list(inputs.shape), "dtype": str(inputs.dtype)}
        return {**known, "range": [int(inputs.min()), int(inputs.max())]} if is_whole and inputs.numel() else known
    if type(inputs) in (tuple, list):
        return {type(inputs).__name__: [shapes_of(entry) for entry in inputs]}
    if type(inputs) is dict and all(isinstance(key, str) for key in inputs):
        return {"dict": {key: shapes_of(inputs[key]) for key in sorted(inputs)}}  # in the order of the file
    if inputs is None or isinstance(inputs, (bool, int, float, str)):
        return {"value": inputs}
    raise ValueError(f"an input of type {type(inputs).__name__} has no shapes")


def from_shapes(data: Any, tensor: Callable[[Mapping[str, Any]], Tensor] | None = None) -> Any:
    """Return the inputs with tensors that hold no data, or those that `tensor` makes; ValueError if these are not shapes."""
    try:
        match data:
            case {"shape": shape, "dtype": dtype}:
                return torch.empty(shape, dtype=DTYPES[dtype], device="meta") if tensor is None else tensor(data)
            case {"tuple": entries}:
                return tuple(from_shapes(entry, tensor) for entry in entries)
            case {"list": entries}:
                return [from_shapes(entry, tensor) for entry in entries]
            case {"dict": entries}:
                return {key: from_shapes(value, tensor) for key, value in entries.items()}
            case {"value": value}:
                return value
    except (KeyError, TypeError, AttributeError, RuntimeError):
        pass
    raise ValueError(f"not the shapes of an input: {data!r}")


def without_data(model: nn.Module) -> nn.Module:
    """Return a copy whose tensors have shapes and no data."""
    known: dict[int, Any] = {id(b): b.to("meta") for b in model.buffers()}
    known |= {id(p): nn.Parameter(p.detach().to("meta"), p.requires_grad) for p in model.parameters()}
    return copy.deepcopy(model, known)


def macs_by_shapes(model: nn.Module, shapes: Any) -> int:
    """Return the multiply-accumulates of a model on inputs of these shapes."""
    inputs = from_shapes(shapes)
    with torch.device("meta"):
        return macs(without_data(model), inputs)


def countable_shapes(model: nn.Module, example: Any, expected_macs: int) -> Any:
    """Return the shapes of the example if the model can be counted by them; None if only real inputs show what it computes."""
    try:
        shapes = shapes_of(example)
        return shapes if macs_by_shapes(model, shapes) == expected_macs else None
    except Exception:  # code of the model's own that looks at values
        return None
