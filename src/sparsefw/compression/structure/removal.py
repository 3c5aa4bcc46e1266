"""Removal: which sets of channels can be removed, checked on the numbers; and the edits that remove them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from sparsefw.compression.artifact.plan import Edit, Keep
from sparsefw.compression.reasons import Cause, Reason, because
from sparsefw.compression.structure import surgery
from sparsefw.compression.structure.balance import with_groups
from sparsefw.compression.structure.channels import Channels, Mode, Side, modes
from sparsefw.compression.structure.gaps import in_double, relative_gap
from sparsefw.compression.structure.layers import call_on_copy, copy_sharing_weights, evaluating
from sparsefw.compression.structure.repairs import in_pairs, repairs, square_pairs
from sparsefw.compression.structure.trace import find_channels

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


def silence(model: nn.Module, edits: Iterable[Edit], readers: bool = True) -> None:
    """Set to 0, in place, the channels that these edits would remove; edits of other kinds have no effect.

    Args:
        model: The network.
        edits: The edits.
        readers: Also what layers read from these channels: they may carry a constant, if a function does not map 0 to 0.
    """
    for edit in edits:
        if isinstance(edit, Keep) and (readers or edit.side != Side.IN):
            removed = sorted(set(range(surgery.size(model, edit.layer, edit.side))) - set(edit.kept))
            surgery.zero_channels(model, edit.layer, edit.side, removed)


def parity(model: nn.Module, edits: Sequence[Edit], example: Any) -> float:
    """Return how far removing channels is from silencing them: the largest difference of the outputs, relative to them.

    Both keep the model's own weights. Edits of rank and of single weights remove no channels and play no part.
    """
    return _parity_and_precision(model, edits, example, readers=True)[0]


def _parity_and_precision(model: nn.Module, edits: Sequence[Edit], example: Any, readers: bool) -> tuple[float, bool]:
    """Return the parity and whether it is that of float64: TF32 or bfloat16 would make equal outputs look different."""
    try:
        return _parity(model, edits, in_double(example), nn.Module.double, readers), True
    except Exception:  # a model with a fixed precision, or a device without float64
        return _parity(model, edits, example, lambda model: model, readers), False


def _parity(
    model: nn.Module,
    edits: Sequence[Edit],
    example: Any,
    converted: Callable[[nn.Module], nn.Module],
    readers: bool,
) -> float:
    # One copy at a time: in float64, each takes up to twice the memory of the model.
    expected = _outputs(converted(_silenced(model, edits, readers)), example)
    return relative_gap(expected, _outputs(converted(_cut(model, edits)), example))


def _silenced(model: nn.Module, edits: Iterable[Edit], readers: bool) -> nn.Module:
    silenced = copy.deepcopy(model)
    silence(silenced, edits, readers)
    return silenced


def _outputs(model: nn.Module, example: Any) -> Any:
    with evaluating(model):
        return call_on_copy(model, example)


def removable_channels(model: nn.Module, example: Any) -> list[Channels]:
    """Return all sets of channels; a set is removable if, on the example, removing channels equals silencing them.

    Following labels shows which channels go together. This trial shows that nothing was missed: code that computes with a fixed
    number of channels, an activation that does not map 0 to 0. Sets that fail are found by halving. What repairs them is tried
    (repairs.py); the others get an obstacle.
    """
    sets = [_unless_single(with_groups(channels, model)) for channels in find_channels(model, example)]
    trial = Trial(_with_varied_parameters(model), _with_varied_values(example), modes(model, example))
    candidates = [channels for channels in sets if channels.obstacle is None]
    failed = trial.offenders(candidates)
    passed = [channels for channels in candidates if channels not in failed]
    repaired = repair(trial, model, passed, failed)
    return [
        repaired.get(channels) or replace(channels, obstacle=failed[channels]) if channels in failed else channels
        for channels in sets
        if channels not in repaired or repaired[channels] is not None
    ]


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
class Trial:
    """Removes channels from a network and compares it with one in which they are silent.

    model, example   without values at which everything looks equal
    modes            those in which the model must run
    """

    model: nn.Module
    example: Any
    modes: Sequence[Mode]

    def offenders(self, sets: Sequence[Channels]) -> dict[Channels, Reason]:
        """Return the sets that cannot be removed, each with the reason, by halving."""
        problem = self.problem(sets) if sets else None
        if problem is None:
            return {}
        if len(sets) == 1:
            return {sets[0]: problem}
        half = len(sets) // 2
        found = self.offenders(sets[:half]) | self.offenders(sets[half:])
        # If each half can be removed but not both, neither is safe.
        return found or dict.fromkeys(sets, problem)

    def problem(self, sets: Sequence[Channels]) -> Reason | None:
        """Return what goes wrong when a third of the channels of these sets is removed; None if it equals silencing them."""
        removed = {channels: _third(channels) for channels in sets}
        readers = any(channels.leaves_constant for channels in sets)
        try:
            edits = removal_edits(self.model, removed)
            gap, is_exact = _parity_and_precision(self.model, edits, self.example, readers)
            for mode in self.modes[1:]:
                small = without(self.model, removed)
                with mode(small):
                    call_on_copy(small, self.example)
        except Exception as error:  # an error of the model's own code on fewer channels is the result of the trial
            return because(Cause.FAILS_WITH_FEWER, error=type(error).__name__)
        return None if gap < (1e-5 if is_exact else 1e-4) else because(Cause.REMOVAL_DIFFERS)


def repair(
    trial: Trial, model: nn.Module, passed: Sequence[Channels], failed: Mapping[Channels, Reason]
) -> dict[Channels, Channels | None]:
    """Return another form of sets that failed with which they pass; None for a set that became part of another.

    A set may leave a constant behind, so that its readers must be silenced; its numbers in modules may be others; and code may
    rely on a square layer having as many outputs as inputs, so that both go together.
    """
    repaired: dict[Channels, Channels | None] = {}
    for channels in failed:
        for form in repairs(channels, model):
            if trial.problem([form]) is None:
                repaired[channels] = form
                break
    for first, second in square_pairs([channels for channels in failed if channels not in repaired], model):
        if first not in repaired and second not in repaired:
            form = in_pairs(first, second)
            if trial.problem([form]) is None:
                repaired |= {first: form, second: None}
    # Each passed alone: they must pass together, too.
    forms = [form for form in repaired.values() if form is not None]
    refused = trial.offenders([*passed, *forms]) if forms else {}
    return (
        {old: form for old, form in repaired.items() if form not in refused} if not refused.keys() - set(forms) else {}
    )


def _third(channels: Channels) -> list[int]:
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
