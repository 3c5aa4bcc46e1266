"""Allocation: how much to take from which layer.

Every rule maps one number, the level, to how many magnitudes each layer keeps. Level 0 keeps all, and a higher level never
keeps more anywhere. A ratio, a budget of parameters, MACs, bytes or milliseconds, or an accuracy to hold are then all the
same problem: find the level (target.py).

    uniform       the same fraction from every layer (the paper's)
    global        one threshold for all magnitudes, each divided by its layer's mean
    energy        every layer loses the same share of its sum of squares
    worst         the largest magnitude lost, relative to the layer's largest, is the same in every layer (as ALDS)
    sensitivity   every layer may change the output equally much, as measured on calibration inputs
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sparsefw.compression.structure.masks import share_of


@dataclass(frozen=True)
class Unit:
    """One layer, or one set of channels: its magnitudes, and in how many equal blocks as many must be kept in each.

    width: how many channels each magnitude stands for, such as those of a head; roundings are of channels.
    """

    name: str
    magnitudes: Tensor = field(compare=False)
    blocks: int = 1
    width: int = 1

    @property
    def count(self) -> int:
        return len(self.magnitudes)

    @property
    def descending(self) -> Tensor:
        return self.magnitudes.sort(descending=True).values

    def rounded(self, kept: int, round_to: int) -> int:
        """The nearest number that can be kept: a multiple of round_to in each block, at least one, at most all."""
        per_block = self.count // self.blocks
        wanted = kept / self.blocks
        step = max(1, round_to // math.gcd(round_to, self.blocks * self.width))
        return self.blocks * min(per_block, max(min(step, per_block), math.floor(wanted / step + 0.5) * step))


class Allocation(ABC):
    @abstractmethod
    def kept(self, units: Sequence[Unit], level: float) -> list[int]:
        """How many magnitudes each unit keeps at this level, before rounding; never more at a higher level."""


class Uniform(Allocation):
    def kept(self, units: Sequence[Unit], level: float) -> list[int]:
        return [unit.count - round(level * unit.count) for unit in units]


class Global(Allocation):
    def kept(self, units: Sequence[Unit], level: float) -> list[int]:
        relative = [unit.magnitudes.double() / unit.magnitudes.double().mean().clamp(min=1e-300) for unit in units]
        smallest_first = torch.cat(relative).argsort(stable=True)  # of equal ones as many go as asked, not all
        stays = torch.ones(len(smallest_first), dtype=torch.bool)
        stays[smallest_first[: share_of(level, len(smallest_first))]] = False
        return [int(own.sum()) for own in stays.split([unit.count for unit in units])]


class Energy(Allocation):
    def kept(self, units: Sequence[Unit], level: float) -> list[int]:
        counts = []
        for unit in units:
            ascending = unit.magnitudes.double().square().sort().values
            lost = ascending.cumsum(0)
            counts.append(unit.count - int((lost <= level * lost[-1]).sum()))
        return counts


class Worst(Allocation):
    def kept(self, units: Sequence[Unit], level: float) -> list[int]:
        return [int((unit.magnitudes > level * unit.magnitudes.max()).sum()) for unit in units]


@dataclass(frozen=True)
class Sensitivity(Allocation):
    """damage[name] are (ratio, change of the output) pairs, measured with only that unit compressed."""

    damage: dict[str, list[tuple[float, float]]]

    def kept(self, units: Sequence[Unit], level: float) -> list[int]:
        finite = [change for pairs in self.damage.values() for _, change in pairs if math.isfinite(change)]
        most = max(finite, default=0.0)  # what turns the output into NaN is never allowed
        allowed = level * most
        return [
            unit.count - math.floor(_ratio_at(self.damage[unit.name], allowed) * unit.count + 1e-9) for unit in units
        ]


def _ratio_at(pairs: list[tuple[float, float]], allowed: float) -> float:
    """The largest ratio whose damage is allowed, linear between the measured ones; damage is taken as non-decreasing."""
    ratio, worst = 0.0, 0.0
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
}
SENSITIVITY = "sensitivity"


def smallest_level(enough: Callable[[float], bool], steps: int = 30) -> float | None:
    """The smallest level in [0, 1] that is enough, by bisection; None where even 1 is not."""
    if enough(0.0):
        return 0.0
    if not enough(1.0):
        return None
    low, high = 0.0, 1.0
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
