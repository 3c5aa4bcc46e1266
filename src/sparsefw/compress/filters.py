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
from sparsefw.compress.attention import plain_attention
from sparsefw.compress.channels import HEADS, IN, OUT, Channels, find_channels, with_blocks
from sparsefw.compress.layers import BATCH_NORMS, AnyConv, call, evaluating
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


def zero_channels(model: nn.Module, channels: Channels, removed: Sequence[int]) -> None:
    """Channels silenced everywhere they are written, in place: filters, biases and batch norm outputs are 0."""
    for site in channels.sites:
        silence(model, site.layer, site.side, [slot for channel in removed for slot in site.slots[channel]])


def silence(model: nn.Module, name: str, side: str, positions: list[int]) -> None:
    """What one side of one layer must set to 0 for its channels to be silent; what reads or merely scales them stays."""
    if side == IN or name in dict(model.named_parameters()):
        return
    module: Any = model.get_submodule(name)
    with torch.no_grad():
        if side == OUT:
            slices.zero_filters(module, positions)
            if module.bias is not None:
                module.bias[positions] = 0
        elif side == HEADS:
            for head in positions:
                module.proj.weight[:, head * module.head_dim : (head + 1) * module.head_dim] = 0
        elif isinstance(module, BATCH_NORMS):
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


def parity_of_plan(source: nn.Module, edits: Sequence[Edit], example: Any) -> float:
    """How far the architecture of a plan is, with the source's own weights, from the source with those channels silenced.

    What rank and weights change is not removal and plays no part.
    """
    masked = plain_attention(copy.deepcopy(source))
    small = copy.deepcopy(masked)
    for edit in edits:
        if isinstance(edit, Keep):
            gone = sorted(set(range(slices.size(masked, edit.layer, edit.side))) - set(edit.kept))
            silence(masked, edit.layer, edit.side, gone)
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
