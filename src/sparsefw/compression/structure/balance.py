"""Balance: channels of which every group loses the same number, as grouped convolutions and code that takes parts ask."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from torch import nn

from sparsefw.compression.reasons import Cause, Reason, because
from sparsefw.compression.structure.channels import Channels, Side, Site
from sparsefw.compression.structure.layers import AnyConv

PartsOfLine = tuple[
    Sequence[int], Sequence[int], Reason
]  # the class and the part of each position, why channels may stay


def joined(sets: Sequence[Channels], members: Sequence[Sequence[int]], parts: Sequence[PartsOfLine]) -> list[Channels]:
    """Return the sets, those joined to one that must lose equally many channels, with the groups that these are in.

    Args:
        sets: Sets of channels.
        members: The class of each of their channels.
        parts: Lines of channels that are taken apart by position, each into parts that stay of equal length.
    """
    shares = [_unequal_shares(line, part) for line, part, _ in parts]
    set_of = {label: s for s, labels in enumerate(members) for label in labels}
    partners = _connected(len(sets), [[set_of[label] for label in share if label in set_of] for share in shares])
    result: dict[int, Channels] = {}
    for s in range(len(sets)):
        together = [other for other in range(len(sets)) if partners[other] == partners[s]]
        if together[0] != s:
            continue
        groups: list[Hashable] = [tuple(share.get(label) for share in shares) for t in together for label in members[t]]
        if len(set(groups)) == 1 and groups[0] == (None,) * len(shares):
            result[s] = sets[s]
            continue
        concerned = [(share, why) for share, (_, _, why) in zip(shares, parts, strict=True) if share]
        result[s] = _join([sets[t] for t in together], groups, [members[t] for t in together], concerned)
    return list(result.values())


def _unequal_shares(line: Sequence[int], part: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Map the classes that are not spread equally over the parts to how often they are in each; the others keep the balance."""
    count = max(part) + 1
    shares: dict[int, list[int]] = {}
    for label, p in zip(line, part, strict=True):
        shares.setdefault(label, [0] * count)[p] += 1
    return {label: tuple(share) for label, share in shares.items() if len(set(share)) > 1}


def _connected(count: int, links: Sequence[Sequence[int]]) -> list[int]:
    """Return the component of each of `count` nodes, of which those in one link are connected."""
    component = list(range(count))
    for link in links:
        old = {component[node] for node in link}
        component = [min(old) if c in old else c for c in component]
    return component


def _join(
    sets: Sequence[Channels],
    keys: Sequence[Hashable],
    members: Sequence[Sequence[int]],
    shares: Sequence[tuple[dict[int, tuple[int, ...]], Reason]],
) -> Channels:
    """Return one set of all channels, grouped by their keys; with an obstacle if equally many of each group do not balance."""
    order = list(dict.fromkeys(keys))
    groups = tuple(order.index(key) for key in keys)
    labels = [label for group in members for label in group]
    obstacle = next((channels.obstacle for channels in sets if channels.obstacle is not None), None)
    representative = dict(zip(groups, labels, strict=True))
    for share, why in shares:
        per_part = [share[label] for label in representative.values() if label in share]
        if obstacle is None and per_part and len({sum(column) for column in zip(*per_part, strict=True)}) > 1:
            obstacle = why
    if obstacle is None and len({groups.count(group) for group in representative}) > 1:
        obstacle = next(why for share, why in shares if any(label in share for label in labels))
    sites = list(dict.fromkeys((site.layer, site.side) for channels in sets for site in channels.sites))
    slots = {site: [] for site in sites}  # type: dict[tuple[str, Side], list[tuple[int, ...]]]
    for channels in sets:
        of_set = {(site.layer, site.side): site.slots for site in channels.sites}
        for site in sites:
            slots[site] += of_set.get(site, ((),) * channels.count)
    return Channels(
        tuple(Site(layer, side, tuple(slots[layer, side])) for layer, side in sites),
        groups,
        obstacle,
        any(channels.is_heads for channels in sets),
    )


def with_groups(channels: Channels, model: nn.Module) -> Channels:
    """Return the set with the group of each channel in grouped convolutions; with an obstacle if layers disagree."""
    if channels.obstacle is not None:
        return channels
    of_layers: list[tuple[tuple[int, ...] | None, ...]] = []
    for site in channels.sites:
        module = model.get_submodule(site.layer) if site.side in (Side.IN, Side.OUT) else None
        if not isinstance(module, AnyConv) or module.groups == 1:
            continue
        width = (module.in_channels if site.side == Side.IN else module.out_channels) // module.groups
        groups = tuple(_share_of(slots, width, module.groups) for slots in site.slots)
        if groups[0] and len(set(groups[0])) == 1 and len(set(groups)) == 1:
            continue  # every channel is spread equally over the groups
        if any(sum(count > 0 for count in share or ()) > 1 for share in groups):
            return replace(channels, obstacle=because(Cause.IN_SEVERAL_GROUPS, layer=site.layer))
        known = {share for share in groups if share is not None}
        if len({(groups.count(share), max(share)) for share in known}) > 1 or len(known) < module.groups:
            return replace(channels, obstacle=because(Cause.UNEQUAL_GROUPS, layer=site.layer))
        of_layers += [] if groups in of_layers else [groups]
    if not of_layers:
        return channels
    # Channels that all layers put into the same group form one. A larger group, of a part that no such layer reads, is divided.
    keys = list(zip(channels.groups, *of_layers, strict=True))
    size = min(keys.count(key) for key in keys)
    if any(keys.count(key) % size for key in keys):
        return replace(channels, obstacle=because(Cause.GROUPED_DIFFERENTLY, layer=channels.name))
    seen: dict[Hashable, int] = {}
    divided: list[Hashable] = []
    for key in keys:
        divided.append((key, seen.setdefault(key, 0) // size))
        seen[key] += 1
    order = list(dict.fromkeys(divided))
    return replace(channels, groups=tuple(order.index(key) for key in divided))


def _share_of(slots: Sequence[int], width: int, groups: int) -> tuple[int, ...] | None:
    """Return how many positions a channel has in each group of a grouped convolution; None if it has none at all."""
    return tuple(sum(slot // width == group for slot in slots) for group in range(groups)) if slots else None
