"""The order of units on disk: what a stage found out about a network, as JSON and a few small tensors.

.order.magnitudes   one number per unit of every set, by which a set is ordered: any count is a prefix of that order
.order.slots.I      the positions that belong to each channel, at the sites that share them; -1 where a channel has fewer
.order.damage       of allocation="sensitivity": ratio and change of the output, for every set
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sparsefw.compression.allocate import ALLOCATIONS, Allocation, Sensitivity
from sparsefw.compression.artifact.plan import Untouched
from sparsefw.compression.kinds import StageRecord
from sparsefw.compression.settings import Selection
from sparsefw.compression.structure.channels import Channels, Side, Site
from sparsefw.scalars import is_int

PREFIX = ".order."
MAGNITUDES = PREFIX + "magnitudes"
SLOTS = PREFIX + "slots."
DAMAGE = PREFIX + "damage"
Slots = tuple[tuple[int, ...], ...]


def to_file(record: StageRecord) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the record as JSON and tensors."""
    patterns = _Patterns()
    sets = [
        {
            "groups": patterns.number_of(tuple((group,) for group in channels.groups)),
            "heads": channels.is_heads,
            "constant": channels.leaves_constant,
            "norms": channels.reaches_norms,
            "sites": [[site.layer, site.side.value, patterns.number_of(site.slots)] for site in channels.sites],
        }
        for channels in record.channels
    ]
    tensors = {f"{SLOTS}{i}": _padded(slots) for i, slots in enumerate(patterns.numbers)}
    if record.units:
        tensors[MAGNITUDES] = torch.cat([magnitudes for _, magnitudes in record.units])
    if isinstance(record.allocation, Sensitivity):
        tensors[DAMAGE] = torch.tensor(list(record.allocation.damage.values()), dtype=torch.float64)
    selection = record.selection
    data = {
        "form": record.form,
        "allocation": next(name for name, rule in ALLOCATIONS.items() if type(record.allocation) is rule),
        "include": list(selection.include),
        "exclude": list(selection.exclude),
        "round_to": selection.round_to,
        "untouched": [entry.to_json() for entry in record.untouched],
        "units": [[name, len(magnitudes)] for name, magnitudes in record.units],
        "channels": sets,
    }
    return data, tensors


def from_file(data: Any, tensors: Mapping[str, Tensor]) -> StageRecord:
    """Invert to_file; ValueError if JSON and tensors are not those of a record."""
    try:
        selection = Selection(tuple(data["include"]), tuple(data["exclude"]), data["round_to"])
        if not is_int(selection.round_to) or selection.round_to < 1:
            raise ValueError(f"round_to={selection.round_to!r}")
        untouched = tuple(Untouched(str(u["layer"]), str(u["reason"]), bool(u["note"])) for u in data["untouched"])
        names = [str(name) for name, _ in data["units"]]
        lengths = [int(length) for _, length in data["units"]]
        parts = tensors[MAGNITUDES].split(lengths) if lengths else ()
        units = tuple(zip(names, parts, strict=True))
        channels = tuple(_channels(entry, tensors) for entry in data["channels"])
        if channels and [c.count for c in channels] != lengths:
            raise ValueError("numbers of channels and of their magnitudes differ")
        allocation = _allocation(data["allocation"], names, tensors)
        return StageRecord(str(data["form"]), allocation, selection, untouched, units, channels)
    except (KeyError, TypeError, AttributeError, IndexError, RuntimeError, ValueError) as error:
        raise ValueError(f"not an order of units: {type(error).__name__} {error}") from None


class _Patterns:
    """Numbers for patterns of positions, of which the sites of a network share a few."""

    def __init__(self) -> None:
        self.numbers: dict[Slots, int] = {}

    def number_of(self, slots: Slots) -> int:
        return self.numbers.setdefault(slots, len(self.numbers))


def _padded(slots: Slots) -> Tensor:
    deepest = max(map(len, slots), default=0)
    return torch.tensor([[*slot, *[-1] * (deepest - len(slot))] for slot in slots], dtype=torch.int32)


def _channels(entry: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Channels:
    sites = tuple(Site(str(layer), Side(side), _slots(tensors, number)) for layer, side, number in entry["sites"])
    groups = tuple(group for (group,) in _slots(tensors, entry["groups"]))
    if any(len(site.slots) != len(groups) for site in sites):
        raise ValueError("sites of different numbers of channels")
    heads, constant, norms = (bool(entry[name]) for name in ("heads", "constant", "norms"))
    return Channels(sites, groups, is_heads=heads, leaves_constant=constant, reaches_norms=norms)


def _slots(tensors: Mapping[str, Tensor], number: Any) -> Slots:
    rows: Sequence[Sequence[int]] = tensors[f"{SLOTS}{number}"].tolist()
    return tuple(tuple(position for position in row if position >= 0) for row in rows)


def _allocation(name: str, sets: Sequence[str], tensors: Mapping[str, Tensor]) -> Allocation:
    allocation = ALLOCATIONS[name]()
    if not isinstance(allocation, Sensitivity):
        return allocation
    pairs = [[(ratio, change) for ratio, change in of_set] for of_set in tensors[DAMAGE].tolist()]
    return Sensitivity(dict(zip(sets, pairs, strict=True)))
