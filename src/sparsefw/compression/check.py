"""What a network must be to be compressed: made of modules, with values, all of them finite."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sparsefw.compression.structure.layers import is_layer

_SPARSE_LAYOUTS = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def check_model(model: nn.Module) -> None:
    """Refuse a model that cannot be compressed, on a copy or in place."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"compress needs a torch.nn.Module, got {type(model).__name__}")
    for name, module in model.named_modules():
        named = f"{name} is" if name else "the model is"
        if isinstance(module, torch.jit.ScriptModule):
            raise ValueError(
                f"{named} a TorchScript module, which cannot be taken apart: give the module that it was made from"
            )
        if _is_quantised(module):
            raise ValueError(
                f"{named} quantised ({type(module).__name__}): compress the model first, then quantise the smaller one"
            )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if nn.parameter.is_lazy(tensor):
            raise ValueError(f"{name} belongs to a lazy layer that has not seen an input: run the model once before")
        if is_sparse(tensor):
            raise ValueError(f"{name} {why_not_sparse(tensor)}")
        if tensor.is_meta:
            raise ValueError(f"{name} is on the device meta and has no values: load weights before")
    broken = [name for name, p in model.named_parameters() if p.is_floating_point() and not _is_finite(p)]
    # Buffers may hold -inf on purpose: masks of attention.
    broken += [name for name, b in model.named_buffers() if b.is_floating_point() and bool(b.isnan().any())]
    if broken:
        raise ValueError(f"{broken[0]} contains NaN or inf; a model must be finite to be compressed")


def is_sparse(tensor: Tensor) -> bool:
    """Return whether a tensor is stored by the places of its entries: it has no strides, and few operations take it."""
    return tensor.layout in _SPARSE_LAYOUTS


def why_not_sparse(tensor: Tensor) -> str:
    """Return how the error about a sparse tensor goes on."""
    return f"is sparse ({tensor.layout}), which cannot be followed: give tensor.to_dense(), and multiply with it by @"


def _is_finite(tensor: Tensor) -> bool:
    """Return whether all entries are finite: a finite sum has finite terms only, and takes no memory."""
    return bool(tensor.detach().sum().isfinite()) or bool(tensor.isfinite().all())


def _is_quantised(module: nn.Module) -> bool:
    """Return whether it is one of torch's quantised modules, or a layer of another library whose weight is whole numbers."""
    origin = type(module).__module__.split(".")
    weight = module.weight if is_layer(module) else None
    is_whole = isinstance(weight, Tensor) and not (weight.is_floating_point() or weight.is_complex())
    return is_whole or (origin[0] == "torch" and "quantized" in origin)
