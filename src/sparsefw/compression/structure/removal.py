"""Removal: which sets of channels can be removed, checked on the numbers; and the edits that remove them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from sparsefw.compression.artifact.plan import Edit, Keep
from sparsefw.compression.reasons import Cause, Reason, because
from sparsefw.compression.structure import surgery
from sparsefw.compression.structure.channels import Channels, Mode, Side, find_channels, modes, with_groups
from sparsefw.compression.structure.gaps import in_double
from sparsefw.compression.structure.layers import call_on_copy, copy_sharing_weights
from sparsefw.compression.structure.trial_run import layers_to_watch, trial_run

Removed = Mapping[Channels, Sequence[int]]  # the channels of each set that are removed


def removal_edits(model: nn.Module, removed: Removed) -> list[Keep]:
    """Return the edits that remove these channels from all of their sites; concatenated sets share a side of a layer."""
    gone: dict[tuple[str, Side], set[int]] = {}
    for channels, indices in removed.items():
        for site in channels.sites:
            slots = (slot for channel in indices for slot in site.slots[channel])
            gone.setdefault((site.layer, site.side), set()).update(slots)
    return [
        Keep(layer, side.value, tuple(i for i in range(surgery.size(model, layer, side)) if i not in positions))
        for (layer, side), positions in gone.items()
        if positions
    ]


def without(model: nn.Module, removed: Removed) -> nn.Module:
    """Return a copy from which these channels are removed."""
    return _cut(model, removal_edits(model, removed))


def _cut(model: nn.Module, edits: Iterable[Edit]) -> nn.Module:
    """Return a copy without the channels that these edits remove; weights that stay whole share the model's memory."""
    small = copy_sharing_weights(model)
    for edit in edits:
        if isinstance(edit, Keep):
            edit.apply(small)
    return small


def silence(model: nn.Module, edits: Iterable[Edit]) -> None:
    """Set to 0, in place, the channels that these edits would remove; edits of other kinds have no effect."""
    for edit in edits:
        if isinstance(edit, Keep):
            removed = sorted(set(range(surgery.size(model, edit.layer, edit.side))) - set(edit.kept))
            surgery.zero_channels(model, edit.layer, edit.side, removed)


def parity(model: nn.Module, edits: Sequence[Edit], example: Any) -> float:
    """Return how far removing channels is from silencing them: the largest difference of the outputs, relative to them.

    Both keep the model's own weights. Edits of rank and of single weights remove no channels and play no part.
    """
    return _parity_and_precision(model, edits, example, layers_to_watch(model, example))[0]


def _parity_and_precision(
    model: nn.Module, edits: Sequence[Edit], example: Any, watched: Collection[str]
) -> tuple[float, bool]:
    """Return the parity and whether it is that of float64: TF32 or bfloat16 would make equal outputs look different."""
    shrunk = {edit.layer for edit in edits if isinstance(edit, Keep) and edit.side == Side.OUT}
    whole = frozenset(watched) - shrunk
    try:
        return _parity(model, edits, in_double(example), whole, nn.Module.double), True
    except Exception:  # a model with a fixed precision, or a device without float64
        return _parity(model, edits, example, whole, lambda model: model), False


def _parity(
    model: nn.Module,
    edits: Sequence[Edit],
    example: Any,
    watched: Collection[str],
    converted: Callable[[nn.Module], nn.Module],
) -> float:
    # One copy at a time: in float64, each takes up to twice the memory of the model.
    silenced = trial_run(converted(_silenced(model, edits)), example, watched=watched)
    return trial_run(converted(_cut(model, edits)), example, silenced, watched).gap(silenced)


def _silenced(model: nn.Module, edits: Iterable[Edit]) -> nn.Module:
    silenced = copy.deepcopy(model)
    silence(silenced, edits)
    return silenced


def removable_channels(model: nn.Module, example: Any) -> list[Channels]:
    """Return all sets of channels; a set is removable if, on the example, removing channels equals silencing them.

    Following labels shows which channels go together. This trial shows that nothing was missed: code that computes with a fixed
    number of channels, an activation that does not map 0 to 0. Sets that fail are found by halving, and get an obstacle; all
    others can be removed together.
    """
    sets = [_unless_single(with_groups(channels, model)) for channels in find_channels(model, example)]
    candidates = [i for i, channels in enumerate(sets) if channels.obstacle is None]
    trial = _Trial(
        _with_varied_parameters(model),
        _with_varied_values(example),
        modes(model, example),
        layers_to_watch(model, example, sets),
        sets,
    )
    reasons: dict[int, Reason] = {}
    _find_offenders(trial, candidates, [], reasons)
    return [replace(channels, obstacle=reasons[i]) if i in reasons else channels for i, channels in enumerate(sets)]


def _unless_single(channels: Channels) -> Channels:
    group_count = len(set(channels.groups))
    if channels.obstacle is not None or channels.count > group_count:
        return channels
    return replace(channels, obstacle=because(Cause.ONLY_ONE if group_count == 1 else Cause.ONLY_ONE_OF_GROUP))


def _with_varied_values(example: Any) -> Any:
    """Return the example with random numbers in tensors that have a single value: on zeros everything looks equal."""
    generator = torch.Generator().manual_seed(0)

    def fill(t: Any) -> Any:
        if not isinstance(t, Tensor) or not t.is_floating_point() or t.numel() < 2 or bool((t != t.flatten()[0]).any()):
            return t
        return torch.randn(t.shape, generator=generator).to(t)

    return tree_map(fill, example)


def _with_varied_parameters(model: nn.Module) -> nn.Module:
    """Return a copy with random numbers in parameters that have a single value, such as 0 or 1e-6 from their start.

    A last layer or a scale of zeros would make every removal look harmless.
    """
    model = copy_sharing_weights(model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            if p.numel() < 2 or not p.is_floating_point() or bool((p != p.flatten()[0]).any()):
                continue
            value = float(p.flatten()[0])
            noise = torch.rand(p.shape, generator=generator).to(p)
            if value == 0:
                p.data = 0.2 * noise - 0.1
            else:
                p.data = (0.5 + noise) * (max(abs(value), 0.1) if value > 0 else value)
    return model


@dataclass(frozen=True)
class _Trial:
    """What removals are tried on.

    watched   the layers whose outputs are compared besides those of the model
    """

    model: nn.Module
    example: Any
    run_modes: Sequence[Mode]
    watched: Collection[str]
    sets: Sequence[Channels]


def _find_offenders(trial: _Trial, candidates: list[int], removable: list[int], reasons: dict[int, Reason]) -> None:
    """Add each candidate to those that are removable together, or its reason to the others, by halving."""
    if not candidates:
        return
    problem = _problem(trial, [trial.sets[i] for i in (*removable, *candidates)])
    if problem is None:
        removable += candidates
    elif len(candidates) == 1:
        reasons[candidates[0]] = problem
    else:
        half = len(candidates) // 2
        _find_offenders(trial, candidates[:half], removable, reasons)
        _find_offenders(trial, candidates[half:], removable, reasons)


def _problem(trial: _Trial, sets: Sequence[Channels]) -> Reason | None:
    """Return what goes wrong when a third of the channels of these sets is removed; None if it equals silencing them."""
    model, example = trial.model, trial.example
    removed = {channels: _chosen(channels) for channels in sets}
    try:
        gap, is_exact = _parity_and_precision(model, removal_edits(model, removed), example, trial.watched)
        for mode in trial.run_modes[1:]:
            small = without(model, removed)
            with mode(small):
                call_on_copy(small, example)
    except Exception as error:  # an error of the model's own code on fewer channels is the result of the trial
        return because(Cause.FAILS_WITH_FEWER, error=type(error).__name__)
    return None if gap < (1e-5 if is_exact else 1e-4) else because(Cause.REMOVAL_DIFFERS)


def _chosen(channels: Channels) -> list[int]:
    """Return a random third of each group, equally many from each: code with fixed counts or places fails on these."""
    groups: dict[int, list[int]] = {}
    for channel, group in enumerate(channels.groups):
        groups.setdefault(group, []).append(channel)
    generator = torch.Generator().manual_seed(0)
    chosen = []
    for members in groups.values():
        order = torch.randperm(len(members), generator=generator).tolist()
        chosen += [members[i] for i in order[: max(1, len(members) // 3)]]
    return sorted(chosen)
