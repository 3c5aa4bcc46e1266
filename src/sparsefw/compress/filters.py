"""Filters: zeroed in place, each convolution for itself (masked, the paper's), or removed with all that belongs to them."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from sparsefw.compress import slices
from sparsefw.compress.channels import EACH, HEADS, OUT, Channels, find_channels, with_blocks
from sparsefw.compress.layers import BATCH_NORMS, TRANSPOSED, AnyConv, bias_of, call, evaluating, groups_of, weight_of
from sparsefw.compress.plan import Edit, Keep


def removal(model: nn.Module, removed: Mapping[Channels, Sequence[int]]) -> list[Edit]:
    """The edits that remove these channels from all of their sites. (Sets that are concatenated share a side of a layer.)"""
    gone: dict[tuple[str, str], set[int]] = {}
    for channels, which in removed.items():
        for site in channels.sites:
            gone.setdefault((site.layer, site.side), set()).update(
                slot for channel in which for slot in site.slots[channel]
            )
    return [
        Keep(layer, side, tuple(i for i in range(slices.size(model, layer, side)) if i not in positions))
        for (layer, side), positions in gone.items()
        if positions
    ]


def zero_filters(layer: nn.Module, removed: Sequence[int]) -> None:
    """The filters of one convolution or linear layer set to 0 in place; its bias and what follows stay as they are."""
    weight = weight_of(layer)
    with torch.no_grad():
        if isinstance(layer, TRANSPOSED):
            width = weight.shape[1]
            for i in removed:
                inputs = weight.shape[0] // groups_of(layer)
                weight[(i // width) * inputs : (i // width + 1) * inputs, i % width] = 0
        else:
            weight[torch.as_tensor(list(removed), dtype=torch.long, device=weight.device)] = 0


def zero_channels(model: nn.Module, channels: Channels, removed: Sequence[int]) -> None:
    """Channels silenced everywhere they are written, in place: filters, biases and batch norm outputs are 0."""
    with torch.no_grad():
        for site in channels.sites:
            positions = [slot for channel in removed for slot in site.slots[channel]]
            if site.side == OUT:
                layer = model.get_submodule(site.layer)
                zero_filters(layer, positions)
                bias = bias_of(layer)
                if bias is not None:
                    bias[positions] = 0
            elif site.side == HEADS:
                block: Any = model.get_submodule(site.layer)
                for head in positions:
                    block.proj.weight[:, head * block.head_dim : (head + 1) * block.head_dim] = 0
            elif site.side == EACH:
                _silence(model, site.layer, positions)


def _silence(model: nn.Module, name: str, positions: list[int]) -> None:
    parameters = dict(model.named_parameters())
    if name in parameters:
        return  # a bare scale of a silent channel
    module = model.get_submodule(name)
    if isinstance(module, BATCH_NORMS):
        if module.affine:
            module.weight[positions] = 0
            module.bias[positions] = 0
        elif module.running_mean is not None:
            module.running_mean[positions] = 0
    elif isinstance(module, AnyConv) and module.bias is not None:  # depthwise
        times = module.out_channels // module.in_channels
        module.bias[[p * times + i for p in positions for i in range(times)]] = 0


def removable_channels(model: nn.Module, example: Any) -> list[Channels]:
    """All sets of channels; those whose removal was tried on the example and found to equal silencing them stay removable.

    Following labels says what belongs together; this checks on the numbers that nothing was missed (code that computes with
    a fixed number of channels, an activation that turns 0 into something else). Offenders are found by halving, and fixed.
    """
    found = [with_blocks(channels, model) for channels in find_channels(model, example)]
    open_sets = [i for i, channels in enumerate(found) if not channels.fixed and channels.count > 1]
    bad = dict(_offenders(model, example, found, open_sets))
    fixed = [replace(channels, fixed=bad[i]) if i in bad else channels for i, channels in enumerate(found)]
    return [replace(c, fixed="the only one") if not c.fixed and c.count == 1 else c for c in fixed]


def _offenders(model: nn.Module, example: Any, found: list[Channels], which: list[int]) -> list[tuple[int, str]]:
    if not which:
        return []
    problem = _parity_problem(model, example, [found[i] for i in which])
    if not problem:
        return []
    if len(which) == 1:
        return [(which[0], problem)]
    half = len(which) // 2
    return _offenders(model, example, found, which[:half]) + _offenders(model, example, found, which[half:])


def _parity_problem(model: nn.Module, example: Any, sets: list[Channels]) -> str:
    """Empty where removing every third channel of these sets equals silencing them; else what went wrong."""
    choice = {c: _trial(c) for c in sets}
    try:
        gap = parity(model, example, choice)
    except Exception as error:  # whatever the model's own code raises on fewer channels is the answer, not a failure
        return f"the model does not run with fewer of them ({type(error).__name__})"
    return "" if gap < 1e-4 else "removing them is not the same as silencing them"


def _trial(channels: Channels) -> list[int]:
    """Every third channel of each block, unevenly placed but equally many in each: what code with fixed counts trips over."""
    members: dict[int, list[int]] = {}
    for channel, block in enumerate(channels.blocks):
        members.setdefault(block, []).append(channel)
    return [c for cs in members.values() for c in cs[: max(1, len(cs) // 3)] if len(cs) > 1]


def parity(model: nn.Module, example: Any, removed: Mapping[Channels, Sequence[int]]) -> float:
    """The largest difference between channels removed and the same channels silenced, relative to the outputs."""
    masked, small = copy.deepcopy(model), copy.deepcopy(model)
    for channels, which in removed.items():
        zero_channels(masked, channels, which)
    for edit in removal(model, removed):
        edit.apply(small)
    with evaluating(masked), evaluating(small):
        return relative_gap(call(masked, example), call(small, example))


def relative_gap(expected: Any, got: Any) -> float:
    """max |got - expected| / max |expected| over all output tensors; inf where the shapes differ."""
    worst = 0.0
    for a, b in zip(_tensors(expected), _tensors(got), strict=True):
        if a.shape != b.shape:
            return float("inf")
        if a.is_floating_point() and a.numel():
            scale = max(float(a.abs().max()), 1e-12)
            gap = float((a.double() - b.double()).abs().max()) / scale
            worst = max(worst, gap if gap == gap else float("inf"))
    return worst


def _tensors(output: Any) -> list[Tensor]:
    output = output.to_tuple() if hasattr(output, "to_tuple") else output
    return [t for t in tree_leaves(output) if isinstance(t, Tensor)]
