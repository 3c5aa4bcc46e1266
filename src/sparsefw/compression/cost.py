"""Costs of a model: parameters, multiply-accumulates, bytes on disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from sparsefw.compression.artifact.packing import packed_bytes
from sparsefw.compression.recovery.batches import batch_size
from sparsefw.compression.structure.layers import call_on_copy, evaluating, plain_transformer_layers

# torch's counter knows the attention kernels of GPUs, but not the one that runs on a CPU.
_CPU_ATTENTION = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v)
}


@dataclass(frozen=True)
class Costs:
    """Costs of a model.

    parameters  all entries of all parameters, zeros included
    macs        multiply-accumulates (not FLOPs, which are twice as many) of a forward pass, per item of the batch
    bytes       of the weights as `save` writes them: tensors with many zeros are packed
    """

    parameters: int
    macs: int
    bytes: int


def costs(model: nn.Module, example: Any) -> Costs:
    """Return the costs of a model; the example is an input with a batch axis.

    >>> costs(nn.Linear(4, 2), torch.zeros(1, 4))
    Costs(parameters=10, macs=8, bytes=40)
    """
    return Costs(parameters(model), macs(model, example), packed_bytes(model))


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def macs(model: nn.Module, example: Any) -> int:
    """Count the multiply-accumulates of convolutions, linear layers, matrix products and attention as they run."""
    return _counted(model, example).get_total_flops() // 2 // batch_size(example)


def parameters_by_module(model: nn.Module) -> dict[str, float]:
    """Return the number of parameters that each module has itself, by its name."""
    counts = {name: sum(p.numel() for p in module.parameters(recurse=False)) for name, module in model.named_modules()}
    return {name: float(count) for name, count in counts.items() if count}


def macs_by_module(model: nn.Module, example: Any) -> dict[str, float]:
    """Return the multiply-accumulates that each module computes itself, by its name."""
    root = type(model).__name__
    flops = {
        name: sum(by_operator.values()) for name, by_operator in _counted(model, example).get_flop_counts().items()
    }
    own: dict[str, float] = {}
    for name, module in model.named_modules():
        inside = sum(flops.get(f"{root}.{f'{name}.{child}'.lstrip('.')}", 0) for child, _ in module.named_children())
        macs_of_module = (flops.get(f"{root}.{name}".rstrip("."), 0) - inside) / 2 / batch_size(example)
        if macs_of_module > 0:
            own[name] = macs_of_module
    return own


def _counted(model: nn.Module, example: Any) -> FlopCounterMode:
    """Return torch's counter after a forward pass."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    try:
        for p in trainable:  # torch's counter follows the gradients of modules that are given a view of a parameter
            p.requires_grad_(False)
        counter = FlopCounterMode(display=False, custom_mapping=_CPU_ATTENTION)
        with evaluating(model), plain_transformer_layers(), counter:  # a fused transformer layer would not be counted
            call_on_copy(model, example)
    finally:
        for p in trainable:
            p.requires_grad_(True)
    return counter
