"""Surgery on layers, in place: a layer keeps some of its channels on one side and becomes smaller, or channels are set to 0."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sparsefw.compression.structure.attention import channels_of_heads, known_attention, rows_of_heads
from sparsefw.compression.structure.channels import SEPARATE_NORMS, Side, is_frozen_norm
from sparsefw.compression.structure.counted_norms import CountedNorm, counted, norm_form
from sparsefw.compression.structure.layers import (
    AnyConv,
    axis_of_channels,
    bare_tensor,
    groups_of,
    is_channels_last,
    replace_module,
    weight_of,
)
from sparsefw.layer_types import TRANSPOSED

_WIDTHS = ("dim", "width", "hidden", "embed", "channels", "d_model")  # in names of numbers of channels


def keep(model: nn.Module, name: str, side: str, kept: Sequence[int]) -> None:
    """Keep exactly these channels on one side of a layer."""
    if not kept or max(kept) >= size(model, name, side):
        raise IndexError(f"{name} has {size(model, name, side)} {side} channels and cannot keep {list(kept[-3:])}")
    if side == Side.EACH and bare_tensor(model, name) is not None:
        owner, _, local = name.rpartition(".")
        return _keep_entries(model.get_submodule(owner), local, kept)
    module = model.get_submodule(name)
    form = norm_form(module)
    if form is not None and not isinstance(module, CountedNorm):
        norm = counted(module, form)
        for other, same in list(model.named_modules(remove_duplicate=False)):
            if same is module:
                replace_module(model, other, norm)
        module = norm
    _KEEP[side](module, list(kept))


def size(model: nn.Module, name: str, side: str) -> int:
    """Return how many channels a layer has on a side."""
    bare = bare_tensor(model, name)
    if side == Side.EACH and bare is not None:
        return bare.shape[_axis(bare)] if bare.ndim else 1
    module: Any = model.get_submodule(name)
    if isinstance(module, nn.Embedding):
        return module.embedding_dim
    if norm_form(module) is not None or is_frozen_norm(module):
        return len(_tensor(module, "weight"))
    if side == Side.HEADS:
        return known_attention(module).heads
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


def keep_heads(module: nn.Module, kept: list[int]) -> None:
    rows = rows_of_heads(module, kept)
    channels = channels_of_heads(module, kept)
    projection = known_attention(module).projection
    for name, outputs in rows.items():
        keep_out(module.get_submodule(name), outputs)
    keep_in(module.get_submodule(projection), channels)
    module.num_heads = len(kept)  # type: ignore[assignment]
    if hasattr(module, "attn_dim"):
        module.attn_dim = len(channels)  # type: ignore[assignment]


_KEEP: dict[str, Callable[[nn.Module, list[int]], None]] = {
    Side.OUT: keep_out,
    Side.IN: keep_in,
    Side.EACH: keep_each,
    Side.HEADS: keep_heads,
}


def zero_channels(model: nn.Module, name: str, side: str, positions: list[int]) -> None:
    """Silence channels on one side of a layer, in place: filters, biases and outputs of norms are 0; readers stay."""
    if side == Side.IN:
        return
    bare = bare_tensor(model, name)  # a scale, an offset or a mask outside of layers
    with torch.no_grad():
        if bare is not None:
            index = torch.as_tensor(positions, dtype=torch.long, device=bare.device)
            bare.index_fill_(_axis(bare), index, 0) if bare.ndim else bare.zero_()
            return
        module: Any = model.get_submodule(name)
        if side == Side.OUT:
            zero_filters(module, positions)
            if module.bias is not None:
                module.bias[positions] = 0
        elif side == Side.HEADS:
            zero_heads(module, positions)
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


def zero_heads(module: nn.Module, heads: Sequence[int]) -> None:
    """Zero the columns of an attention module's output projection that read these heads, in place."""
    projection = module.get_submodule(known_attention(module).projection)
    with torch.no_grad():
        weight_of(projection)[:, channels_of_heads(module, heads)] = 0


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


def _keep_entries(owner: nn.Module, local: str, kept: Sequence[int]) -> None:
    tensor = _tensor(owner, local)
    axis = _axis(tensor)
    count = tensor.shape[axis] if tensor.ndim else 1
    _set(owner, local, take(tensor, axis, kept))
    _tell_count(owner, count, len(kept))


def _tell_count(owner: nn.Module, before: int, now: int) -> None:
    """Correct the numbers by which the code of a module reshapes channels, such as hidden_dim=64 or shape=(64, 1, 1)."""
    for name, value in list(vars(owner).items()):
        if type(value) is tuple and value.count(before) == 1 and all(type(length) is int for length in value):
            setattr(owner, name, tuple(now if length == before else length for length in value))
        elif type(value) is int and value == before and any(word in name for word in _WIDTHS):
            setattr(owner, name, now)


def _axis(bare: Tensor) -> int:
    """Return the axis of the channels in a tensor outside of layers."""
    axis = axis_of_channels(bare)
    assert axis is not None
    return axis


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
