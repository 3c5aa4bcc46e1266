"""Removal: which sets of channels can be removed, checked on the numbers; and the edits that remove them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from sparsefw.compression.artifact.plan import Edit, Keep
from sparsefw.compression.reasons import Cause, Reason, because
from sparsefw.compression.structure import surgery
from sparsefw.compression.structure.channels import Channels, Mode, Side, find_channels, modes, with_groups
from sparsefw.compression.structure.copies import copy_sharing_weights
from sparsefw.compression.structure.gaps import in_double, relative_gap
from sparsefw.compression.structure.layers import call_on_copy, evaluating

SAME = 1e-5  # gaps of outputs below this are rounding
SAME_BUT_FOR_ROUNDING = 1e-4  # the same for a model that cannot run in float64
CLEARLY_DIFFERENT = 1e-2  # no rounding of float32 comes to that in a network that is of any use
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
    return _parity_and_precision(model, edits, example)[0]


def _parity_and_precision(model: nn.Module, edits: Sequence[Edit], example: Any) -> tuple[float, bool]:
    """Return the parity and whether it is that of float64: TF32 or bfloat16 would make equal outputs look different."""
    try:
        return _parity(model, edits, in_double(example), nn.Module.double), True
    except Exception:  # a model with a fixed precision, or a device without float64
        return _parity(model, edits, example, lambda model: model), False


def _parity(
    model: nn.Module, edits: Sequence[Edit], example: Any, converted: Callable[[nn.Module], nn.Module]
) -> float:
    # One copy at a time: in float64, each takes up to twice the memory of the model.
    expected = _outputs(converted(_silenced(model, edits)), example)
    return relative_gap(expected, _outputs(converted(_cut(model, edits)), example))


def _silenced(model: nn.Module, edits: Sequence[Edit]) -> nn.Module:
    """Return a copy in which the channels that these edits would remove are 0; other weights share the model's memory."""
    changed = {edit.layer for edit in edits if isinstance(edit, Keep) and edit.side != Side.IN}
    silenced = copy_sharing_weights(model, changed)
    silence(silenced, edits)
    return silenced


def _outputs(model: nn.Module, example: Any) -> Any:
    with evaluating(model):
        return call_on_copy(model, example)


def removable_channels(model: nn.Module, example: Any) -> list[Channels]:
    """Return all sets of channels; a set is removable if, on the example, removing channels equals silencing them.

    Following labels shows which channels go together. This trial shows that nothing was missed: code that computes with a fixed
    number of channels, an activation that does not map 0 to 0. Sets that fail are found by halving, and get an obstacle.
    """
    sets = [_unless_single(with_groups(channels, model)) for channels in find_channels(model, example)]
    candidates = [i for i, channels in enumerate(sets) if channels.obstacle is None]
    run_modes = modes(model, example)
    trial = _with_varied_parameters(model), _with_varied_values(example)
    reasons = dict(_offenders(*trial, run_modes, sets, candidates))
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
        if not isinstance(t, Tensor) or not t.is_floating_point() or t.numel() < 2 or not _is_constant(t):
            return t
        return torch.randn(t.shape, generator=generator).to(t)

    return tree_map(fill, example)


def _with_varied_parameters(model: nn.Module) -> nn.Module:
    """Return the model, or a copy with random numbers in parameters that have a single value, as 0 or 1e-6 from their start.

    A last layer or a scale of zeros would make every removal look harmless.
    """
    constant = {
        name for name, p in model.named_parameters() if p.is_floating_point() and p.numel() > 1 and _is_constant(p)
    }
    if not constant:
        return model
    model = copy_sharing_weights(model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name not in constant:
                continue
            value = float(p.flatten()[0])
            noise = torch.rand(p.shape, generator=generator).to(p)
            if value == 0:
                p.data = 0.2 * noise - 0.1
            else:
                p.data = (0.5 + noise) * (max(abs(value), 0.1) if value > 0 else value)
    return model


def _is_constant(tensor: Tensor) -> bool:
    """Return whether all entries are equal; most tensors show in two entries that they are not."""
    entries = tensor.detach().flatten()
    return bool(entries[0] == entries[-1]) and not bool((entries != entries[0]).any())


def _offenders(
    model: nn.Module, example: Any, run_modes: Sequence[Mode], sets: list[Channels], candidates: list[int]
) -> list[tuple[int, Reason]]:
    """Return the candidates that cannot be removed, each with the reason, by halving."""
    if not candidates:
        return []
    chosen = [sets[i] for i in candidates]
    if len(candidates) == 1:
        problem = _problem(model, example, run_modes, chosen)
        return [] if problem is None else [(candidates[0], problem)]
    if _problem(model, example, run_modes, chosen, in_short=True) is None:
        return []
    half = len(candidates) // 2
    first = _offenders(model, example, run_modes, sets, candidates[:half])
    second = _offenders(model, example, run_modes, sets, candidates[half:])
    if first or second:
        return [*first, *second]
    # If each half can be removed but not both, neither is safe.
    problem = _problem(model, example, run_modes, chosen)
    return [] if problem is None else [(i, problem) for i in candidates]


def _problem(
    model: nn.Module, example: Any, run_modes: Sequence[Mode], sets: list[Channels], in_short: bool = False
) -> Reason | None:
    """Return what goes wrong when a third of the channels of these sets is removed; None if it equals silencing them.

    in_short: where the outputs are far apart in the model's own precision, they are not compared in float64.
    """
    removed = {channels: _trial(channels) for channels in sets}
    edits = removal_edits(model, removed)
    try:
        differs = _differs(model, edits, example, in_short)
        for mode in run_modes[1:]:
            small = _cut(model, edits)
            with mode(small):
                call_on_copy(small, example)
    except Exception as error:  # an error of the model's own code on fewer channels is the result of the trial
        return because(Cause.FAILS_WITH_FEWER, error=type(error).__name__)
    return because(Cause.REMOVAL_DIFFERS) if differs else None


def _differs(model: nn.Module, edits: Sequence[Edit], example: Any, in_short: bool) -> bool:
    """Return whether removing channels is not the same as silencing them.

    Equal outputs in float32 are equal outputs. Different ones may be so by rounding, or as TF32, and float64 decides, which takes
    twice the time and the memory.
    """
    if all(p.dtype in (torch.float32, torch.float64) for p in model.parameters()):
        gap = _parity(model, edits, example, lambda model: model)
        if gap < SAME or (in_short and gap > CLEARLY_DIFFERENT):
            return not gap < SAME
    gap, is_exact = _parity_and_precision(model, edits, example)
    return not gap < (SAME if is_exact else SAME_BUT_FOR_ROUNDING)


def _trial(channels: Channels) -> list[int]:
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
