"""Filters: zeroed in place, each convolution for itself (masked, the paper's), or removed with all that belongs to them."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from sparsefw.compression.artifact.plan import Edit, Keep
from sparsefw.compression.structure import surgery
from sparsefw.compression.structure.attention import plain_attention
from sparsefw.compression.structure.channels import (
    HEADS,
    IN,
    OUT,
    SEPARATE_NORMS,
    Channels,
    Mode,
    find_channels,
    modes,
    tensors_of,
    with_blocks,
)
from sparsefw.compression.structure.layers import AnyConv, call, evaluating


def removal(model: nn.Module, removed: Mapping[Channels, Sequence[int]]) -> list[Edit]:
    """The edits that remove these channels from all of their sites. (Sets that are concatenated share a side of a layer.)"""
    gone: dict[tuple[str, str], set[int]] = {}
    for channels, which in removed.items():
        for site in channels.sites:
            gone.setdefault((site.layer, site.side), set()).update(
                slot for channel in which for slot in site.slots[channel]
            )
    return [
        Keep(layer, side, tuple(i for i in range(surgery.size(model, layer, side)) if i not in positions))
        for (layer, side), positions in gone.items()
        if positions
    ]


def zero_channels(model: nn.Module, channels: Channels, removed: Sequence[int]) -> None:
    """Channels silenced everywhere they are written, in place: filters, biases and batch norm outputs are 0."""
    for site in channels.sites:
        silence(model, site.layer, site.side, [slot for channel in removed for slot in site.slots[channel]])


def silence(model: nn.Module, name: str, side: str, positions: list[int]) -> None:
    """What one side of one layer must set to 0 for its channels to be silent; what reads them stays."""
    if side == IN:
        return
    bare = dict(model.named_parameters()).get(name)  # a scale of its own, or an offset
    with torch.no_grad():
        if bare is not None:
            bare.view(-1)[positions] = 0
            return
        module: Any = model.get_submodule(name)
        if side == OUT:
            surgery.zero_filters(module, positions)
            if module.bias is not None:
                module.bias[positions] = 0
        elif side == HEADS:
            surgery.zero_heads(module, positions)
        elif isinstance(module, SEPARATE_NORMS):
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
    found = [_unless_single(with_blocks(channels, model)) for channels in find_channels(model, example)]
    open_sets = [i for i, channels in enumerate(found) if not channels.fixed]
    how, example = modes(model, example), _lively(example)
    bad = dict(_offenders(*_in_double(_awake(model), example), how, found, open_sets))
    return [replace(channels, fixed=bad[i]) if i in bad else channels for i, channels in enumerate(found)]


def _lively(example: Any) -> Any:
    """The example with random numbers where it has only one value: on zeros everything looks equal."""
    generator = torch.Generator().manual_seed(0)

    def fill(t: Any) -> Any:
        if not isinstance(t, Tensor) or not t.is_floating_point() or t.numel() < 2 or bool((t != t.flatten()[0]).any()):
            return t
        return torch.randn(t.shape, generator=generator).to(t)

    return tree_map(fill, example)


def _unless_single(channels: Channels) -> Channels:
    blocks = len(set(channels.blocks))
    if channels.fixed or channels.count > blocks:
        return channels
    return replace(channels, fixed="the only one" if blocks == 1 else "the only one of its group")


def _awake(model: nn.Module) -> nn.Module:
    """A copy in which nothing hides: parameters as they were initialised, all 0 or all 1e-6, say, become random numbers.

    A last layer or a scale of zeros would make every removal look harmless.
    """
    model = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            if p.numel() > 1 and p.is_floating_point() and bool((p == p.flatten()[0]).all()):
                value, noise = float(p.flatten()[0]), torch.rand(p.shape, generator=generator).to(p)
                p.copy_(
                    0.2 * noise - 0.1 if value == 0 else (0.5 + noise) * (max(abs(value), 0.1) if value > 0 else value)
                )
    return model


def _in_double(model: nn.Module, example: Any) -> tuple[nn.Module, Any]:
    """Both in float64, where small differences are real ones; as they are where the model insists on its own precision."""
    exact, inputs = copy.deepcopy(model).double(), _doubled(example)
    try:
        with evaluating(exact):
            call(exact, inputs)
    except (
        Exception
    ):  # code that casts to float32 itself, a device without float64: compared less sharply, but compared
        return model, example
    return exact, inputs


def _doubled(example: Any) -> Any:
    return tree_map(lambda t: t.double() if isinstance(t, Tensor) and t.is_floating_point() else t, example)


def _offenders(
    model: nn.Module, example: Any, how: Sequence[Mode], found: list[Channels], which: list[int]
) -> list[tuple[int, str]]:
    if not which:
        return []
    problem = _problem(model, example, how, [found[i] for i in which])
    if not problem:
        return []
    if len(which) == 1:
        return [(which[0], problem)]
    half = len(which) // 2
    parts = [_offenders(model, example, how, found, part) for part in (which[:half], which[half:])]
    # Where each half can go but not both, neither is safe.
    return [*parts[0], *parts[1]] or [(i, problem) for i in which]


def _problem(model: nn.Module, example: Any, how: Sequence[Mode], sets: list[Channels]) -> str:
    """Empty where removing a third of the channels of these sets equals silencing them; else what went wrong."""
    choice = {c: _trial(c) for c in sets}
    try:
        gap = parity(model, example, choice)
        for mode in how[1:]:
            small = without(model, choice)
            with mode(small):
                call(small, example)
    except Exception as error:  # whatever the model's own code raises on fewer channels is the answer, not a failure
        return f"the model does not run with fewer of them ({type(error).__name__})"
    exact = all(p.dtype == torch.float64 for p in model.parameters() if p.is_floating_point())
    return "" if gap < (1e-5 if exact else 1e-4) else "removing them is not the same as silencing them"


def _trial(channels: Channels) -> list[int]:
    """A third of each block, unevenly placed but equally many in each: what code with fixed counts or places trips over."""
    members: dict[int, list[int]] = {}
    for channel, block in enumerate(channels.blocks):
        members.setdefault(block, []).append(channel)
    generator = torch.Generator().manual_seed(0)
    return sorted(
        cs[i]
        for cs in members.values()
        for i in torch.randperm(len(cs), generator=generator).tolist()[: max(1, len(cs) // 3)]
    )


def without(model: nn.Module, removed: Mapping[Channels, Sequence[int]]) -> nn.Module:
    """A copy from which these channels are removed."""
    small = copy.deepcopy(model)
    for edit in removal(model, removed):
        edit.apply(small)
    return small


def parity(model: nn.Module, example: Any, removed: Mapping[Channels, Sequence[int]]) -> float:
    """The largest difference between channels removed and the same channels silenced, relative to the outputs."""
    masked, small = copy.deepcopy(model), without(model, removed)
    for channels, which in removed.items():
        zero_channels(masked, channels, which)
    return gap_between(masked, small, example)


def gap_between(expected: nn.Module, got: nn.Module, example: Any) -> float:
    """relative_gap of two models' outputs, computed in float64: TF32 or bfloat16 would make equal ones look different."""
    try:
        return _gap(copy.deepcopy(expected).double(), copy.deepcopy(got).double(), _doubled(example))
    except Exception:  # a model that insists on its own precision, or a device without float64
        return _gap(expected, got, example)


def _gap(expected: nn.Module, got: nn.Module, inputs: Any) -> float:
    with evaluating(expected), evaluating(got):
        return relative_gap(call(expected, inputs), call(got, inputs))


def parity_of_plan(source: nn.Module, edits: Sequence[Edit], example: Any) -> float:
    """How far the architecture of a plan is, with the source's own weights, from the source with those channels silenced.

    What rank and weights change is not removal and plays no part.
    """
    masked = plain_attention(copy.deepcopy(source))
    small = copy.deepcopy(masked)
    for edit in edits:
        if isinstance(edit, Keep):
            gone = sorted(set(range(surgery.size(masked, edit.layer, edit.side))) - set(edit.kept))
            silence(masked, edit.layer, edit.side, gone)
            edit.apply(small)
    return gap_between(masked, small, example)


def relative_gap(expected: Any, got: Any, whole_numbers: bool = False) -> float:
    """The largest |got - expected|, relative to how far the expected values lie apart, over all output tensors.

    inf where the shapes differ or nothing can be compared. A common offset of all outputs hides nothing. What is not
    finite must be equal. Whole numbers, such as the index of a class, are alike by luck too easily to prove anything, and
    are left out; with `whole_numbers`, the share of them that differs counts.
    """
    worst, compared = 0.0, False
    for a, b in zip(tensors_of(expected), tensors_of(got), strict=True):
        if a.shape != b.shape:
            return float("inf")
        if not (whole_numbers or a.is_floating_point() or a.is_complex()):
            continue
        gap = _gap_of_tensors(a.detach(), b.detach().to(a.device))
        if gap is not None:
            compared, worst = True, max(worst, gap)
    return worst if compared else float("inf")


def _gap_of_tensors(a: Tensor, b: Tensor) -> float | None:
    """None where there is nothing to compare: no entries, or none that are finite."""
    if not (a.is_floating_point() or a.is_complex()):
        return float((a != b).double().mean()) if a.numel() else None
    special = ~a.isfinite() | ~b.isfinite()
    if bool((special & (a != b) & ~(a.isnan() & b.isnan())).any()):
        return float("inf")
    exact = torch.complex128 if a.is_complex() else torch.float64
    finite, other = a[~special].to(exact), b[~special].to(exact)
    if not finite.numel():
        return None
    largest, spread = finite.abs().max(), (finite - finite[0]).abs().max()
    # Values that are alike but for their rounding lie no distance apart that could be a measure.
    rounding = 1e3 * torch.finfo(a.dtype).eps
    scale = torch.where(spread > rounding * largest, spread, largest)
    return float((finite - other).abs().max() / scale.clamp(min=1e-12))
