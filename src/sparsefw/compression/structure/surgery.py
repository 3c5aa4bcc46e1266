"""Surgery on layers, in place: a layer keeps some of its channels on one side and becomes smaller, or channels are set to 0."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sparsefw.compression.structure.channels import BARE_SIDES, SEPARATE_NORMS, Side, is_frozen_norm
from sparsefw.compression.structure.counted_norms import CountedNorm, counted, norm_form
from sparsefw.compression.structure.layers import (
    AnyConv,
    axis_of_channels,
    bare_tensor,
    groups_of,
    is_channels_last,
    replace_everywhere,
    weight_of,
)
from sparsefw.compression.structure.numbers import number_of, set_number
from sparsefw.layer_types import TRANSPOSED


def keep(model: nn.Module, name: str, side: str, kept: Sequence[int]) -> None:
    """Keep exactly these channels on one side of a layer."""
    if not kept or max(kept) >= size(model, name, side):
        raise IndexError(f"{name} has {size(model, name, side)} {side} channels and cannot keep {list(kept[-3:])}")
    if side == Side.COUNT:
        return set_number(model, name, len(kept))
    if side in BARE_SIDES and bare_tensor(model, name) is not None:
        owner, _, local = name.rpartition(".")
        return _keep_entries(model.get_submodule(owner), local, side, kept)
    module = model.get_submodule(name)
    _KEEP[side](module if norm_form(module) is None else _counted_in_place(model, name), list(kept))


def _counted_in_place(model: nn.Module, name: str) -> CountedNorm:
    """Put a norm that can lose channels in the place of one over channels, and return it."""
    module = model.get_submodule(name)
    form = norm_form(module)
    assert form is not None
    norm = counted(module, form)
    if norm is not module:
        replace_everywhere(model, module, norm)
    return norm


def size(model: nn.Module, name: str, side: str) -> int:
    """Return how many channels a layer has on a side."""
    if side == Side.COUNT:
        return number_of(model, name)
    bare = bare_tensor(model, name)
    if side in BARE_SIDES and bare is not None:
        return bare.shape[axis_of_bare(bare, side)] if bare.ndim else 1
    module: Any = model.get_submodule(name)
    if isinstance(module, nn.Embedding):
        return module.embedding_dim
    if norm_form(module) is not None or is_frozen_norm(module):
        return len(_tensor(module, "weight"))
    if isinstance(module, nn.Linear):
        return module.out_features if side == Side.OUT else module.in_features
    if isinstance(module, AnyConv):
        return module.out_channels if side == Side.OUT else module.in_channels
    return int(module.num_features if isinstance(module, SEPARATE_NORMS) else module.num_parameters)


def _keep_within_groups(layer: Any, kept: Sequence[int], per_group: int) -> Tensor:
    """Return the weight of a grouped layer with the kept slices of its second axis, which every group counts from 0."""
    rows = layer.weight.shape[0] // layer.groups
    parts = []
    for group in range(layer.groups):
        indices = [i - group * per_group for i in kept if i // per_group == group]
        parts.append(take(layer.weight[group * rows : (group + 1) * rows], 1, indices))
    return torch.cat(parts)


def keep_out(layer: nn.Module, kept: list[int]) -> None:
    if isinstance(layer, TRANSPOSED):
        # (inputs, outputs per group, *kernel): every group is a range of the first axis, and keeps its own outputs.
        _set(layer, "weight", _keep_within_groups(layer, kept, layer.out_channels // layer.groups))
    else:
        _set(layer, "weight", take(_tensor(layer, "weight"), 0, kept))
    if layer.bias is not None:
        _set(layer, "bias", take(_tensor(layer, "bias"), 0, kept))
    _set_count(layer, "out", len(kept))


def keep_in(layer: nn.Module, kept: list[int]) -> None:
    weight = _tensor(layer, "weight")
    if isinstance(layer, TRANSPOSED):
        _set(layer, "weight", take(weight, 0, kept))
    elif isinstance(layer, AnyConv) and layer.groups > 1:
        _set(layer, "weight", _keep_within_groups(layer, kept, layer.in_channels // layer.groups))
    else:
        _set(layer, "weight", take(weight, 1, kept))
    _set_count(layer, "in", len(kept))


def keep_each(module: nn.Module, kept: list[int]) -> None:
    """Keep channels of a layer that does not mix them: depthwise convolution, norm, PReLU; and of an embedding."""
    if isinstance(module, AnyConv):
        times = module.out_channels // module.in_channels
        rows = [channel * times + i for channel in kept for i in range(times)]
        _set(module, "weight", take(module.weight, 0, kept if isinstance(module, TRANSPOSED) else rows))
        if module.bias is not None:
            _set(module, "bias", take(module.bias, 0, rows))
        module.groups = module.in_channels = len(kept)
        module.out_channels = len(rows)
        return
    if isinstance(module, nn.Embedding):
        _set(module, "weight", take(module.weight, 1, kept))
        module.embedding_dim = len(kept)
        return
    for name in ("weight", "bias", "running_mean", "running_var"):
        if isinstance(getattr(module, name, None), Tensor):
            _set(module, name, take(_tensor(module, name), 0, kept))
    if isinstance(module, SEPARATE_NORMS):
        module.num_features = len(kept)
    elif isinstance(module, nn.PReLU):
        module.num_parameters = len(kept)


_KEEP: dict[str, Callable[[nn.Module, list[int]], None]] = {
    Side.OUT: keep_out,
    Side.IN: keep_in,
    Side.EACH: keep_each,
}


def zero_channels(model: nn.Module, name: str, side: str, positions: list[int]) -> None:
    """Silence channels on one side of a layer, in place: filters, biases and outputs of norms are 0, and what reads them."""
    if side == Side.COUNT:
        return
    bare = bare_tensor(model, name)  # a scale, an offset or a mask outside of layers
    with torch.no_grad():
        if bare is not None:
            index = torch.as_tensor(positions, dtype=torch.long, device=bare.device)
            bare.index_fill_(axis_of_bare(bare, side), index, 0) if bare.ndim else bare.zero_()
            return
        module: Any = model.get_submodule(name)
        if side == Side.IN:
            zero_inputs(module, positions)
        elif side == Side.OUT:
            zero_filters(module, positions)
            if module.bias is not None:
                module.bias[positions] = 0
        elif isinstance(module, nn.Embedding):
            module.weight[:, positions] = 0
        elif is_frozen_norm(module):
            module.weight[positions] = 0
            module.bias[positions] = 0
        elif norm_form(module) is not None:
            for vector in module.parameters():
                vector[positions] = 0
        elif isinstance(module, SEPARATE_NORMS):
            if module.affine:
                module.weight[positions] = 0
                module.bias[positions] = 0
            elif module.running_mean is not None:
                module.running_mean[positions] = 0
        elif isinstance(module, AnyConv) and module.bias is not None:  # depthwise
            times = module.out_channels // module.in_channels
            module.bias[[p * times + i for p in positions for i in range(times)]] = 0


def is_norm_over_channels(model: nn.Module, name: str) -> bool:
    """Return whether this is the name of a norm that averages over channels."""
    return bare_tensor(model, name) is None and norm_form(model.get_submodule(name)) is not None


def ignore_channels(model: nn.Module, name: str, positions: Sequence[int]) -> None:
    """Let a norm over channels count some as 0, in place: what they carry may be a constant."""
    norm = _counted_in_place(model, name)
    norm.silent = tuple(sorted({*norm.silent, *positions}))


def zero_inputs(layer: nn.Module, inputs: Sequence[int]) -> None:
    """Zero what a layer reads from these inputs, in place."""
    weight = weight_of(layer)
    groups = groups_of(layer)
    with torch.no_grad():
        if isinstance(layer, TRANSPOSED):
            weight[list(inputs)] = 0
            return
        by_group = weight.view(groups, -1, *weight.shape[1:])
        places: dict[int, list[int]] = {}
        for i in inputs:
            places.setdefault(i // weight.shape[1], []).append(i % weight.shape[1])
        for group, within in places.items():
            by_group[group].index_fill_(1, torch.as_tensor(within, device=weight.device), 0)


def zero_filters(layer: nn.Module, removed: Sequence[int]) -> None:
    """Zero filters of a convolution or linear layer, in place; its bias and the layers behind it stay as they are."""
    weight = weight_of(layer)
    with torch.no_grad():
        if isinstance(layer, TRANSPOSED):
            width = weight.shape[1]
            for i in removed:
                inputs = weight.shape[0] // groups_of(layer)
                weight[(i // width) * inputs : (i // width + 1) * inputs, i % width] = 0
        else:
            weight[torch.as_tensor(list(removed), dtype=torch.long, device=weight.device)] = 0


def take(tensor: Tensor, axis: int, indices: Sequence[int]) -> Tensor:
    """Return slices of a tensor along an axis, in the tensor's memory format."""
    with torch.no_grad():
        taken = tensor.index_select(axis, torch.as_tensor(indices, device=tensor.device))
    return taken.contiguous(memory_format=torch.channels_last if is_channels_last(tensor) else torch.contiguous_format)


def _keep_entries(owner: nn.Module, local: str, side: str, kept: Sequence[int]) -> None:
    tensor = _tensor(owner, local)
    _set(owner, local, take(tensor, axis_of_bare(tensor, side), kept))


def axis_of_bare(bare: Tensor, side: str) -> int:
    """Return the axis of the channels in a tensor outside of layers."""
    if side in (Side.ROWS, Side.PLANES):
        return int(side == Side.PLANES)
    axis = axis_of_channels(bare)
    return bare.ndim - 1 if axis is None else axis


def _tensor(module: nn.Module, name: str) -> Tensor:
    tensor = getattr(module, name)
    assert isinstance(tensor, Tensor)
    return tensor


def _set(module: nn.Module, name: str, value: Tensor) -> None:
    old = getattr(module, name)
    if isinstance(old, nn.Parameter):
        value = nn.Parameter(value, requires_grad=old.requires_grad)
    setattr(module, name, value)


def _set_count(layer: nn.Module, side: str, count: int) -> None:
    setattr(layer, f"{side}_{'features' if isinstance(layer, nn.Linear) else 'channels'}", count)
