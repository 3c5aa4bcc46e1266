"""Repairs: other forms of sets of channels that cannot be removed as they were found. A trial decides (removal.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from torch import nn

from sparsefw.compression.reasons import Reason
from sparsefw.compression.structure.channels import Channels, Side, Site
from sparsefw.compression.structure.numbers import numbers_in, outer_modules

_MOST_PAIRS = 32  # of square layers that are tried
Problem = Callable[[Sequence[Channels]], Reason | None]


def repair(
    problem: Problem, model: nn.Module, passed: Sequence[Channels], failed: Mapping[Channels, Reason]
) -> dict[Channels, Channels | None]:
    """Return another form of sets that failed with which they pass; None for a set that became part of another.

    A set may leave a constant behind, so that its readers must be silenced; its numbers in modules may be others; and code may
    rely on a square layer having as many outputs as inputs, so that both go together.

    Args:
        problem: Tries to remove channels of all of these sets, and returns what goes wrong.
        model: The network.
        passed: The sets that can be removed as they are.
        failed: Those that cannot.
    """
    repaired: dict[Channels, Channels | None] = {}
    for channels in failed:
        form = next((form for form in repairs(channels, model) if problem([form]) is None), None)
        repaired |= {} if form is None else {channels: form}
    for first, second in square_pairs([channels for channels in failed if channels not in repaired], model):
        if first not in repaired and second not in repaired and problem([in_pairs(first, second)]) is None:
            repaired |= {first: in_pairs(first, second), second: None}
    # Each passed alone: they must pass together, too.
    forms = [form for form in repaired.values() if form is not None]
    return repaired if forms and problem([*passed, *forms]) is None else {}


def repairs(channels: Channels, model: nn.Module) -> Iterator[Channels]:
    """Yield other forms of a set: silent to its readers, with fewer or with more numbers of modules."""
    yield replace(channels, leaves_constant=True)
    layers = tuple(site for site in channels.sites if site.side != Side.COUNT)
    if len(layers) < len(channels.sites):
        yield replace(channels, sites=layers)
    numbers = _numbers_beside(channels, layers, model)
    if numbers:
        yield replace(channels, sites=(*layers, *numbers))


def _numbers_beside(channels: Channels, layers: Sequence[Site], model: nn.Module) -> list[Site]:
    """Return the numbers of the modules around the layers of a set that are as large as the set."""
    numbers: dict[str, Site] = {}
    for site in layers:
        length = sum(map(len, site.slots))
        for name in outer_modules(site.layer):
            for attribute in numbers_in(model.get_submodule(name), length, None):
                full = f"{name}.{attribute}".lstrip(".")
                numbers.setdefault(full, Site(full, Side.COUNT, site.slots))
    return list(numbers.values())


def square_pairs(sets: Sequence[Channels], model: nn.Module) -> list[tuple[Channels, Channels]]:
    """Return the pairs of sets of equal size that a layer joins: one writes what it reads, it writes the other."""
    pairs = []
    for first in sets:
        inputs = {site.layer for site in first.readers}
        for second in sets:
            outputs = {site.layer for site in second.writers}
            if first is not second and first.groups == second.groups and inputs & outputs:
                pairs.append((first, second))
    return pairs[:_MOST_PAIRS]


def in_pairs(first: Channels, second: Channels) -> Channels:
    """Return the set in which channel j of both goes at once."""
    slots: dict[tuple[str, Side], list[tuple[int, ...]]] = {}
    for site in (*first.sites, *second.sites):
        known = slots.get((site.layer, site.side))
        merged = (
            [tuple(sorted({*a, *b})) for a, b in zip(known, site.slots, strict=True)] if known else list(site.slots)
        )
        slots[site.layer, site.side] = merged
    sites = tuple(Site(layer, side, tuple(of_channels)) for (layer, side), of_channels in slots.items())
    return Channels(sites, first.groups, None, first.is_heads or second.is_heads)
