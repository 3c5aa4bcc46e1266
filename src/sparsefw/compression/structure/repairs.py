"""Repairs: other forms of sets of channels that cannot be removed as they were found. A trial decides (removal.py)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from torch import nn

from sparsefw.compression.reasons import Reason
from sparsefw.compression.structure.channels import Channels, Side, Site
from sparsefw.compression.structure.numbers import numbers_in, outer_modules
from sparsefw.compression.structure.surgery import is_norm_over_channels
from sparsefw.compression.structure.trials import Problem


class Trials(Protocol):
    """Tries to remove channels of some sets together, and finds those of which none can be removed."""

    @property
    def problem(self) -> Problem[Channels]: ...

    def offenders(self, sets: Sequence[Channels]) -> Mapping[Channels, Reason]: ...


_ALIGNMENT = 16  # bytes


def repair(
    trial: Trials, model: nn.Module, passed: Sequence[Channels], failed: Sequence[Channels]
) -> dict[Channels, Channels | None]:
    """Return another form of sets that failed with which they pass; None for a set that became part of another.

    Args:
        trial: Tries to remove channels.
        model: The network.
        passed: The sets that can be removed as they are.
        failed: Those that cannot.
    """
    repaired: dict[Channels, Channels | None] = {}
    for stream in failed:
        others = _going_with(stream, [channels for channels in failed if channels not in repaired])
        as_wide = [channels for channels in others if not channels.is_heads]
        for together in (as_wide, others) if as_wide else (others,):
            form = in_blocks(stream, together) if together and stream not in repaired else None
            forms = [] if form is None else [form, _with_checked_numbers(form, model), _with_numbers(form, model)]
            fitting = next(
                (form for form in forms if form is not None and trial.problem([form], briefly=True) is None), None
            )
            if fitting is not None:
                repaired |= {stream: fitting, **dict.fromkeys(together, None)}
    for change in (
        _in_aligned_blocks,
        _silent_to_readers,
        _silent_to_norms,
        _without_numbers,
        _with_checked_numbers,
        _with_numbers,
    ):
        by_set = {channels: change(channels, model) for channels in failed if channels not in repaired}
        changed = {channels: form for channels, form in by_set.items() if form is not None}
        still = trial.offenders(list(changed.values()))
        repaired |= {channels: form for channels, form in changed.items() if form not in still}
    # They passed without the others: they must pass together, too.
    changed_sets = [form for form in repaired.values() if form is not None]
    return repaired if changed_sets and trial.problem([*passed, *changed_sets]) is None else {}


def _going_with(stream: Channels, failed: Sequence[Channels]) -> list[Channels]:
    """Return the sets that code may rely on being as wide as the stream: heads, and what layers make of it, or of such a set."""
    if stream.is_heads:
        return []
    candidates = [c for c in failed if c is not stream and (c.is_heads or c.count == stream.count)]
    readers = {site.layer for site in stream.readers}
    others: list[Channels] = []
    while found := [c for c in candidates if c not in others and not readers.isdisjoint(s.layer for s in c.writers)]:
        others += found
        readers |= {site.layer for c in found if not c.is_heads for site in c.readers}
    return [c for c in candidates if c in others]


def in_blocks(stream: Channels, others: Sequence[Channels]) -> Channels | None:
    """Return the set in which channels of a stream go with as many of others; None if their numbers do not divide.

    With heads, blocks of channels go with a head of all layers: code that finds the size of a head by dividing the width of what
    it reads needs both to shrink alike.
    """
    count = math.gcd(*(channels.count for channels in (stream, *others)))
    if len(set(stream.groups)) > 1 or count == 1:
        return None
    return _blocks((stream, *others), count)


def _blocks(sets: Sequence[Channels], count: int) -> Channels:
    """Return the set of so many blocks, each of which holds as many channels of every set as any other."""
    slots: dict[tuple[str, Side], list[set[int]]] = {}
    for channels in sets:
        per_block = channels.count // count
        for site in channels.sites:
            of_blocks = slots.setdefault((site.layer, site.side), [set() for _ in range(count)])
            for channel, positions in enumerate(site.slots):
                of_blocks[channel // per_block].update(positions)
    sites = tuple(
        Site(layer, side, tuple(tuple(sorted(positions)) for positions in of_blocks))
        for (layer, side), of_blocks in slots.items()
    )
    return Channels(sites, (0,) * count)


def _in_aligned_blocks(channels: Channels, model: nn.Module) -> Channels | None:
    """Products with stacks of matrices, such as those of experts, need rows that are a multiple of some bytes."""
    stacks = [site.layer for site in channels.sites if site.side == Side.PLANES]
    width = _ALIGNMENT // min((model.get_parameter(name).itemsize for name in stacks), default=_ALIGNMENT)
    if width == 1 or channels.count % width or channels.count == width or len(set(channels.groups)) > 1:
        return None
    return _blocks((channels,), channels.count // width)


def _silent_to_readers(channels: Channels, model: nn.Module) -> Channels:
    """A function behind the set does not map 0 to 0."""
    return replace(channels, leaves_constant=True)


def _silent_to_norms(channels: Channels, model: nn.Module) -> Channels | None:
    """Norms over channels see what is left of the set, as the offset of a layer over tokens."""
    norms = [site for site in channels.sites if site.side == Side.EACH and is_norm_over_channels(model, site.layer)]
    return replace(channels, leaves_constant=True, reaches_norms=True) if norms else None


def _without_numbers(channels: Channels, model: nn.Module) -> Channels | None:
    """Numbers of modules are as large as the set by chance."""
    layers = tuple(site for site in channels.sites if site.side != Side.COUNT)
    return replace(channels, sites=layers) if len(layers) < len(channels.sites) else None


def _with_checked_numbers(channels: Channels, model: nn.Module) -> Channels | None:
    """The modules around the layers check a number that they call one of channels, beside those that lay out tensors."""
    known = {site.layer for site in channels.sites if site.side == Side.COUNT}
    layers = [site for site in channels.sites if site.side != Side.COUNT]
    beside = [site for site in _numbers_beside(layers, model) if "channel" in site.layer and site.layer not in known]
    return replace(channels, sites=(*channels.sites, *beside)) if beside else None


def _with_numbers(channels: Channels, model: nn.Module) -> Channels | None:
    """The modules around the layers of the set hold its number, and do not use it to lay out a tensor."""
    layers = tuple(site for site in channels.sites if site.side != Side.COUNT)
    numbers = _numbers_beside(layers, model)
    return replace(channels, sites=(*layers, *numbers)) if numbers else None


def _numbers_beside(layers: Sequence[Site], model: nn.Module) -> list[Site]:
    """Return the numbers of the modules around the layers of a set that are as large as the set."""
    numbers: dict[str, Site] = {}
    for site in layers:
        length = sum(map(len, site.slots))
        for name in outer_modules(site.layer):
            for attribute in numbers_in(model.get_submodule(name), length, None):
                full = f"{name}.{attribute}".lstrip(".")
                numbers.setdefault(full, Site(full, Side.COUNT, site.slots))
    return list(numbers.values())
