"""Removal: which sets of channels can be removed, checked on the numbers; and the edits that remove them."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from sparsefw.compression.artifact.plan import Edit, Keep
from sparsefw.compression.reasons import Cause, Reason, because
from sparsefw.compression.structure import surgery
from sparsefw.compression.structure.balance import with_groups
from sparsefw.compression.structure.channels import Channels, Mode, Side, Site, modes
from sparsefw.compression.structure.copies import copy_sharing_weights
from sparsefw.compression.structure.failures import described
from sparsefw.compression.structure.layers import call_on_copy
from sparsefw.compression.structure.repairs import repair
from sparsefw.compression.structure.trace import find_channels
from sparsefw.compression.structure.trial_run import layers_to_watch
from sparsefw.compression.structure.trials import (
    Comparison,
    offenders,
    with_varied_parameters,
    with_varied_values,
)

_DRAWS = 2  # of channels to remove in a trial
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
    return cut(model, removal_edits(model, removed))


def cut(model: nn.Module, edits: Iterable[Edit]) -> nn.Module:
    """Return a copy without the channels that these edits remove; weights that stay whole share the model's memory."""
    small = copy_sharing_weights(model)
    for edit in edits:
        if isinstance(edit, Keep):
            edit.apply(small)
    return small


def silence(model: nn.Module, edits: Iterable[Edit], readers: bool = True, norms: bool = True) -> None:
    """Set to 0, in place, the channels that these edits would remove; edits of other kinds have no effect.

    Args:
        model: The network.
        edits: The edits.
        readers: Also what layers read from these channels: they may carry a constant, if a function does not map 0 to 0.
        norms: Also what norms over channels see of them.
    """
    for edit in edits:
        if isinstance(edit, Keep) and (readers or edit.side != Side.IN):
            removed = sorted(set(range(surgery.size(model, edit.layer, edit.side))) - set(edit.kept))
            surgery.zero_channels(model, edit.layer, edit.side, removed)
            if norms and edit.side == Side.EACH and surgery.is_norm_over_channels(model, edit.layer):
                surgery.ignore_channels(model, edit.layer, removed)


def parity(model: nn.Module, edits: Sequence[Edit], example: Any) -> float:
    """Return how far removing channels is from silencing them: the largest difference of the outputs, relative to them.

    Both keep the model's own weights. Edits of rank and of single weights remove no channels and play no part.
    """
    return _comparison(model, edits, example, layers_to_watch(model, example), True, True).gap()[0]


def _comparison(
    model: nn.Module, edits: Sequence[Edit], example: Any, watched: Collection[str], readers: bool, norms: bool
) -> Comparison:
    """Return the network with these channels silent beside the one without them."""
    shrunk = {edit.layer for edit in edits if isinstance(edit, Keep) and edit.side == Side.OUT}
    whole = frozenset(watched) - shrunk
    return Comparison(lambda _: _silenced(model, edits, readers, norms), lambda _: cut(model, edits), example, whole)


def _silenced(model: nn.Module, edits: Sequence[Edit], readers: bool, norms: bool) -> nn.Module:
    """Return a copy in which the channels that these edits would remove are 0; other weights share the model's memory."""
    changed = {edit.layer for edit in edits if isinstance(edit, Keep) and (readers or edit.side != Side.IN)}
    silenced = copy_sharing_weights(model, changed)
    silence(silenced, edits, readers, norms)
    return silenced


def removable_channels(model: nn.Module, example: Any) -> list[Channels]:
    """Return all sets of channels; a set is removable if, on the example, removing channels equals silencing them.

    Following labels shows which channels go together. This trial shows that nothing was missed: code that computes with a fixed
    number of channels, an activation that does not map 0 to 0. Sets that fail are found by halving. What repairs them is tried
    (repairs.py); the others get an obstacle.
    """
    sets = [_unless_single(with_groups(channels, model)) for channels in find_channels(model, example)]
    watched = layers_to_watch(model, example, sets)
    trial = Trial(with_varied_parameters(model), with_varied_values(example), modes(model, example), watched)
    candidates = [channels for channels in sets if channels.obstacle is None]
    failed = offenders(candidates, trial.problem)
    repaired = repair(trial.problem, model, [c for c in candidates if c not in failed], list(failed))
    result = []
    for channels in sets:
        form = repaired.get(channels, channels)
        if form is channels and channels in failed:
            form = replace(channels, obstacle=failed[channels])
        result += [] if form is None else [form]
    return _with_needed_numbers(result, trial)


def _with_needed_numbers(sets: Sequence[Channels], trial: Trial) -> list[Channels]:
    """Return the sets without the numbers that the network runs without: another number may be as large by chance.

    On longer inputs than the example, changing such a number could change what the network computes.
    """
    needed = list(sets)
    names = [_attribute(site) for channels in sets for site in channels.sites if site.side == Side.COUNT]
    for name in dict.fromkeys(names):
        fewer = [_without_number(channels, name) for channels in needed]
        if trial.problem([channels for channels in fewer if channels.obstacle is None], briefly=True) is None:
            needed = fewer
    return needed


def _without_number(channels: Channels, name: str) -> Channels:
    sites = tuple(site for site in channels.sites if site.side != Side.COUNT or _attribute(site) != name)
    return channels if len(sites) == len(channels.sites) else replace(channels, sites=sites)


def _attribute(site: Site) -> str:
    """Return the name of the attribute that a site counts, without the module, and the index in a tuple."""
    return next(part for part in reversed(site.layer.split(".")) if not part.isdigit())


def _unless_single(channels: Channels) -> Channels:
    group_count = len(set(channels.groups))
    if channels.obstacle is not None or channels.count > group_count:
        return channels
    if channels.count == 1 and not channels.is_heads and any(len(site.slots[0]) > 1 for site in channels.writers):
        return replace(channels, obstacle=because(Cause.ALL_TOGETHER))
    return replace(channels, obstacle=because(Cause.ONLY_ONE if group_count == 1 else Cause.ONLY_ONE_OF_GROUP))


@dataclass(frozen=True)
class Trial:
    """Removes channels from a network and compares it with one in which they are silent.

    model, example   without values at which everything looks equal
    modes            those in which the model must run
    watched          the layers whose outputs are compared besides those of the model
    """

    model: nn.Module
    example: Any
    modes: Sequence[Mode]
    watched: Collection[str] = ()

    def problem(self, sets: Sequence[Channels], /, briefly: bool = False) -> Reason | None:
        """Return what goes wrong when some of the channels of these sets are removed; None if it equals silencing them."""
        readers = any(channels.leaves_constant for channels in sets)
        norms = any(channels.reaches_norms for channels in sets)
        for draw in range(_DRAWS):
            edits = removal_edits(self.model, {channels: _some(channels, draw) for channels in sets})
            try:
                differs = _comparison(self.model, edits, self.example, self.watched, readers, norms).differs(briefly)
                for mode in self.modes[1:]:
                    small = cut(self.model, edits)
                    with mode(small):
                        call_on_copy(small, self.example)
            except Exception as error:  # an error of the model's own code on fewer channels is the result of the trial
                return because(Cause.FAILS_WITH_FEWER, error=described(error))
            if differs:
                return because(Cause.REMOVAL_DIFFERS)
        return None


def _some(channels: Channels, draw: int) -> list[int]:
    """Return some random channels, equally many from each group: code with fixed counts or places fails on these.

    How large a part depends on the name of the set and on the draw: code may compute one number from another, as the size of a
    head from a width, and what fits by chance in one draw does not in another.
    """
    groups: dict[int, list[int]] = {}
    for channel, group in enumerate(channels.groups):
        groups.setdefault(group, []).append(channel)
    generator = torch.Generator().manual_seed(draw)
    parts = 2 + zlib.crc32(f"{channels.name} {draw}".encode()) % 4
    chosen = []
    for members in groups.values():
        order = torch.randperm(len(members), generator=generator).tolist()
        count = max(1, len(members) // parts)
        if draw == 0 and count + 1 < len(members):
            count |= 1  # kernels that take some multiples only fail on odd numbers
        chosen += [members[i] for i in order[:count]]
    return sorted(chosen)
