"""Packing: sparse tensors on disk as a bit mask and the nonzero values, if that is smaller than the tensor itself.

Values are restored bit for bit, except that -0.0 in a packed tensor becomes 0.0: entries equal to 0 are not stored.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

# Endings of the names of the three tensors that store a sparse one.
MASK = ".sparsefw_mask"
VALUES = ".sparsefw_values"
SHAPE = ".sparsefw_shape"

OWN = "."  # begins the names of what we store beside a network's tensors: none of theirs begins with a dot


def pack(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the same tensors, sparse ones as three entries: mask bits, values, shape."""
    packed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if not _is_worth_it(tensor):
            packed[name] = tensor.detach().cpu().contiguous()
            continue
        flat = tensor.detach().cpu().contiguous().flatten()
        mask = flat != 0
        packed[name + MASK] = torch.from_numpy(np.packbits(mask.numpy()))
        packed[name + VALUES] = flat[mask]
        packed[name + SHAPE] = torch.tensor(tensor.shape, dtype=torch.int64)
    return packed


def unpack(packed: dict[str, Tensor]) -> dict[str, Tensor]:
    """Invert pack; ValueError if the entries of a tensor do not fit each other."""
    tensors = {name: t for name, t in packed.items() if not name.endswith((MASK, VALUES, SHAPE))}
    for key, bits in packed.items():
        if not key.endswith(MASK):
            continue
        name = key.removesuffix(MASK)
        if name + VALUES not in packed or name + SHAPE not in packed:
            raise ValueError(f"{name}: a mask without values or shape")
        values = packed[name + VALUES]
        shape = packed[name + SHAPE].tolist()
        count = math.prod(shape)
        if any(length < 0 for length in shape) or bits.numel() != (count + 7) // 8:
            raise ValueError(f"{name}: a mask of {bits.numel()} bytes for the shape {shape}")
        mask = torch.from_numpy(np.unpackbits(bits.numpy(), count=count).astype(bool))
        if int(mask.sum()) != values.numel():
            raise ValueError(f"{name}: {values.numel()} values for {int(mask.sum())} places")
        flat = torch.zeros(count, dtype=values.dtype)
        flat[mask] = values
        tensors[name] = flat.view(shape)
    return tensors


def packed_bytes(model: nn.Module) -> int:
    """Return the bytes of the model's tensors as they would be stored."""
    return sum(_bytes(tensor) for tensor in unique_tensors(model).values())


def unique_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return all tensors of a model, also the buffers that its state dict leaves out; tied ones once, under their first name."""
    tensors = {**model.state_dict(), **buffers_outside_of_state(model)}
    return {name: tensors[name].detach() for name, first in first_names(model).items() if name == first}


def first_names(model: nn.Module) -> dict[str, str]:
    """Map every name of a tensor, in the state dict or of a buffer outside of it, to the first name of the same tensor."""
    first: dict[Tensor, str] = {}
    state = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}  # or extra state
    tensors = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    return {
        name: first.setdefault(tensors[name], name) if name in tensors else name
        for name in (*state, *buffers_outside_of_state(model))
    }


def buffers_outside_of_state(model: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that are not persistent, under all of their names."""
    state = model.state_dict()
    return {name: b for name, b in model.named_buffers(remove_duplicate=False) if name not in state}


def _is_worth_it(tensor: Tensor) -> bool:
    return _bytes(tensor) < tensor.numel() * tensor.element_size()


def _bytes(tensor: Tensor) -> int:
    whole = tensor.numel() * tensor.element_size()
    if not tensor.is_floating_point():
        return whole
    sparse = int(torch.count_nonzero(tensor)) * tensor.element_size() + (tensor.numel() + 7) // 8 + 8 * tensor.ndim
    return min(whole, sparse)
