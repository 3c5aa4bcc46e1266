"""Allocation: how much each layer loses.

Every rule maps one number, the level, to the number of units that each layer keeps. Level 0 keeps all, and a higher level
never keeps more anywhere. A ratio, a budget of parameters, MACs, bytes or milliseconds, and an accuracy to hold are then the
same problem: find the level (target.py).

    uniform       the same fraction from every layer (the paper's)
    global        one threshold for all magnitudes, each divided by its layer's mean
    energy        every layer loses the same share of its sum of squares
    worst         the largest magnitude lost, relative to the layer's largest, is the same in every layer (as ALDS)
    sensitivity   every layer may change the output by the same amount, measured on calibration inputs (sensitivity.py)
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sparsefw.compression.bisection import bisect
from sparsefw.compression.structure.masks import share_of
from sparsefw.geometry.select import smallest_k_indices


@dataclass(frozen=True)
class UnitSet:
    """The units that one layer, or one set of channels, can lose.

    magnitudes   one number per unit
    groups       the units form this many groups of equal size, each of which keeps the same number
    width        how many channels a unit has: those of a head, or one; numbers of channels are rounded
    """

    name: str
    magnitudes: Tensor = field(compare=False)
    groups: int = 1
    width: int = 1

    @property
    def count(self) -> int:
        return len(self.magnitudes)

    def rounded(self, kept: int, round_to: int) -> int:
        """Return the least number from `kept` on that can stay: a multiple of round_to in each group, at least one, at most all.

        >>> UnitSet("conv", torch.ones(10)).rounded(5, round_to=4)
        8
        """
        per_group = self.count // self.groups
        wanted = kept / self.groups
        step = max(1, round_to // math.gcd(round_to, self.groups * self.width))
        return self.groups * min(per_group, max(min(step, per_group), math.ceil(wanted / step) * step))


class Allocation(ABC):
    @abstractmethod
    def kept(self, sets: Sequence[UnitSet], level: float) -> list[int]:
        """Return how many units each set keeps at this level, before rounding; never more at a higher level."""


class Uniform(Allocation):
    def kept(self, sets: Sequence[UnitSet], level: float) -> list[int]:
        return [units.count - round(level * units.count) for units in sets]


class Global(Allocation):
    def kept(self, sets: Sequence[UnitSet], level: float) -> list[int]:
        relative = [units.magnitudes.double() / units.magnitudes.double().mean().clamp(min=1e-300) for units in sets]
        magnitudes = torch.cat(relative)
        stays = torch.ones(len(magnitudes), dtype=torch.bool)
        stays[smallest_k_indices(magnitudes, share_of(level, len(magnitudes)))] = False
        return [int(mask.sum()) for mask in stays.split([units.count for units in sets])]


class Energy(Allocation):
    def kept(self, sets: Sequence[UnitSet], level: float) -> list[int]:
        counts = []
        for units in sets:
            ascending = units.magnitudes.double().square().sort().values
            lost = ascending.cumsum(0)
            counts.append(units.count - int((lost <= level * lost[-1]).sum()))
        return counts


class Worst(Allocation):
    def kept(self, sets: Sequence[UnitSet], level: float) -> list[int]:
        return [int((units.magnitudes > level * units.magnitudes.max()).sum()) for units in sets]


@dataclass(frozen=True)
class Sensitivity(Allocation):
    """damage[name]: pairs of a ratio and the change of the output with that ratio removed from this set alone."""

    damage: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def kept(self, sets: Sequence[UnitSet], level: float) -> list[int]:
        changes = [change for pairs in self.damage.values() for _, change in pairs]
        largest = max((change for change in changes if math.isfinite(change)), default=0.0)  # never NaN or inf outputs
        ratios = [_ratio_at(self.damage[units.name], level * largest) for units in sets]
        return [units.count - math.floor(ratio * units.count + 1e-9) for units, ratio in zip(sets, ratios, strict=True)]


def _ratio_at(pairs: list[tuple[float, float]], allowed: float) -> float:
    """Return the largest ratio whose damage is allowed, linear between the measured ones; damage never decreases."""
    ratio = 0.0
    worst = 0.0
    for next_ratio, damage in sorted(pairs):
        damage = max(damage, worst)
        if damage > allowed:
            return ratio + (next_ratio - ratio) * (allowed - worst) / (damage - worst) if damage > worst else ratio
        ratio, worst = next_ratio, damage
    return ratio


ALLOCATIONS: dict[str, Callable[[], Allocation]] = {
    "uniform": Uniform,
    "global": Global,
    "energy": Energy,
    "worst": Worst,
    "sensitivity": Sensitivity,  # its damage is measured once the sets are known
}


def smallest_level(enough: Callable[[float], bool], steps: int = 30) -> float | None:
    """Return the smallest level in [0, 1] that is enough, by bisection; None if not even 1 is.

    >>> round(smallest_level(lambda level: level >= 0.25), 6)
    0.25
    """
    if enough(0.0):
        return 0.0
    if not enough(1.0):
        return None
    return bisect(enough, 0.0, 1.0, steps)[1]
