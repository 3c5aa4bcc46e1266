"""Removal: which sets of channels can be removed, checked on the numbers; and the edits that remove them."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from sparsefw.compression.artifact.plan import Edit, Keep
from sparsefw.compression.reasons import Cause, Reason, because
from sparsefw.compression.structure import surgery
from sparsefw.compression.structure.balance import with_groups
from sparsefw.compression.structure.channels import Channels, Mode, Side, Site, modes
from sparsefw.compression.structure.copies import copy_sharing_weights
from sparsefw.compression.structure.decisions import Decisions
from sparsefw.compression.structure.failures import described
from sparsefw.compression.structure.layers import call_on_copy
from sparsefw.compression.structure.parts import edits_inside, first_inputs, module_around, places_inside
from sparsefw.compression.structure.repairs import repair
from sparsefw.compression.structure.trace import find_channels
from sparsefw.compression.structure.trial_run import TrialRun, layers_to_watch
from sparsefw.compression.structure.trials import (
    Comparison,
    Verdicts,
    is_coarse,
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


def is_clearly_silencing(model: nn.Module, edits: Sequence[Edit], example: Any) -> bool:
    """Return whether removing channels equals silencing them in the model's own precision; if not, parity decides."""
    comparison = _comparison(model, edits, example, (), readers=True, norms=True)
    try:
        is_same = comparison.is_same()
    except Exception:  # which parity shows
        return False
    return is_same and not comparison.lead().decisions.made


def _comparison(
    model: nn.Module,
    edits: Sequence[Edit],
    example: Any,
    watched: Collection[str] | None,
    readers: bool,
    norms: bool,
    known: dict[bool, TrialRun] | None = None,
) -> Comparison:
    """Return the network with these channels silent, of which runs may be known, beside the one without them."""
    shrunk = {edit.layer for edit in edits if isinstance(edit, Keep) and edit.side == Side.OUT}
    whole = None if watched is None else frozenset(watched) - shrunk
    runs = {} if known is None else known
    return Comparison(
        lambda _: _silenced(model, edits, readers, norms),
        lambda _: cut(model, edits),
        example,
        whole,
        is_coarse(model),
        runs,
    )


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
    with Decisions() as decisions:
        in_modes = modes(model, example)
    sets = [_unless_single(with_groups(channels, model)) for channels in find_channels(model, example, in_modes)]
    watched = layers_to_watch(model, example, sets) if decisions.made else None
    trial = Trial(with_varied_parameters(model), with_varied_values(example), in_modes, watched)
    layers_only = [_without_numbers(channels) for channels in sets]
    if layers_only != sets and trial.problem(_removable(layers_only), briefly=True) is None:
        return layers_only
    candidates = _removable(sets)
    failed = trial.offenders(candidates)
    repaired = repair(trial, model, [c for c in candidates if c not in failed], list(failed))
    result = []
    for channels in sets:
        form = repaired.get(channels, channels)
        if form is channels and channels in failed:
            form = replace(channels, obstacle=failed[channels])
        result += [] if form is None else [form]
    return _with_needed_numbers(result, trial)


def _removable(sets: Sequence[Channels]) -> list[Channels]:
    return [channels for channels in sets if channels.obstacle is None]


def _with_needed_numbers(sets: Sequence[Channels], trial: Trial) -> list[Channels]:
    """Return the sets without the numbers that the network runs without: another number may be as large by chance.

    On longer inputs than the example, changing such a number could change what the network computes.
    """
    needed = list(sets)
    names = [_attribute(site) for channels in sets for site in channels.sites if site.side == Side.COUNT]
    for name in dict.fromkeys(names):
        fewer = [_without_numbers(channels, name) for channels in needed]
        if trial.problem(_removable(fewer), briefly=True) is None:
            needed = fewer
    return needed


def _without_numbers(channels: Channels, name: str | None = None) -> Channels:
    """Return a set without the numbers of modules that have this name; None: any name."""
    sites = tuple(s for s in channels.sites if s.side != Side.COUNT or (name is not None and _attribute(s) != name))
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
    watched: Collection[str] | None = None
    _known: dict[Any, dict[bool, TrialRun]] = field(default_factory=dict)

    def offenders(self, sets: Sequence[Channels]) -> dict[Channels, Reason]:
        """Return the sets of which no channels can be removed beside those of the others, each with the reason."""
        return offenders(sets, self.problem, self.alone)

    def problem(self, sets: Sequence[Channels], /, briefly: bool = False) -> Reason | None:
        """Return what goes wrong when some of the channels of these sets are removed; None if it equals silencing them."""
        readers = any(channels.leaves_constant for channels in sets)
        norms = any(channels.reaches_norms for channels in sets)
        for draw in range(_DRAWS):
            edits = removal_edits(self.model, {channels: _some(channels, draw) for channels in sets})
            known = self._runs_with_silent(edits, readers, norms)
            try:
                comparison = _comparison(self.model, edits, self.example, self.watched, readers, norms, known)
                differs = comparison.differs(briefly)
                for mode in self.modes[1:]:
                    small = cut(self.model, edits)
                    with mode(small):
                        call_on_copy(small, self.example)
            except Exception as error:  # an error of the model's own code on fewer channels is the result of the trial
                return because(Cause.FAILS_WITH_FEWER, error=described(error))
            if differs:
                return because(Cause.REMOVAL_DIFFERS)
        return None

    def _runs_with_silent(self, edits: Sequence[Keep], readers: bool, norms: bool) -> dict[bool, TrialRun]:
        """Return the known runs of the network in which these channels are silent, whatever numbers of modules say.

        Those of the last two draws are kept, and none of a network that makes decisions: it notes what it decides by.
        """
        if self.watched is not None:
            return {}
        key = (readers, norms, *(edit for edit in edits if edit.side != Side.COUNT))
        known = self._known.pop(key, {})
        while len(self._known) >= _DRAWS:
            self._known.pop(next(iter(self._known)))
        self._known[key] = known
        return known

    def alone(self, sets: Sequence[Channels]) -> Verdicts[Channels]:
        """Try every set by itself, in the module around it, on what this is called with in the whole network.

        What does not run there does not run in the network. What differs there may make no difference behind it, and what
        passes in one block is taken to pass in the blocks like it: trials of the network decide on these.
        """
        names = {channels: module_around(channels, self.model) for channels in sets}
        inputs = first_inputs(self.model, self.example, set(names.values()) - {""})
        failed: dict[Channels, Reason] = {}
        doubted = set()
        seen: dict[Any, bool] = {}  # whether sets at these places, as in blocks that repeat, are doubted
        for channels, name in names.items():
            if name not in inputs:
                continue
            places = places_inside(channels, name, self.model)
            if places not in seen:
                reason = self._problem_in(name, inputs[name], channels)
                if reason is not None and reason.cause is Cause.FAILS_WITH_FEWER:
                    failed[channels] = reason
                    continue
                seen[places] = reason is not None
            if seen[places]:
                doubted.add(channels)
        return Verdicts(failed, doubted, {channels for channels, name in names.items() if name not in inputs})

    def _problem_in(self, name: str, inputs: Any, channels: Channels) -> Reason | None:
        """Return what goes wrong in a module, run by itself on these inputs, when some channels of a set are removed."""
        part = self.model.get_submodule(name)
        watched = None if self.watched is None else ()
        for draw in range(_DRAWS):
            edits = edits_inside(removal_edits(self.model, {channels: _some(channels, draw)}), name)
            comparison = _comparison(part, edits, inputs, watched, channels.leaves_constant, channels.reaches_norms)
            try:
                differs = comparison.differs(briefly=True)
            except Exception as error:
                try:
                    comparison.lead()
                except Exception:  # the module does not run by itself
                    return because(Cause.REMOVAL_DIFFERS)
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
