"""Allocation: how much each layer loses.

Every rule maps one number, the level, to the number of magnitudes that each layer keeps. Level 0 keeps all, and a higher level
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

from sparsefw.compression.structure.masks import share_of
from sparsefw.geometry.select import smallest_k


@dataclass(frozen=True)
class Unit:
    """One layer or one set of channels.

    magnitudes   one number for each thing that can be removed
    blocks       the magnitudes form this many equal blocks, in each of which the same number is kept
    width        how many channels each magnitude stands for, such as those of a head; counts of channels are rounded
    """

    name: str
    magnitudes: Tensor = field(compare=False)
    blocks: int = 1
    width: int = 1

    @property
    def count(self) -> int:
        return len(self.magnitudes)

    def rounded(self, kept: int, round_to: int) -> int:
        """Return the nearest number that can be kept: a multiple of round_to in each block, at least one, at most all.

        >>> Unit("conv", torch.ones(10)).rounded(6, round_to=4)
        8
        """
        per_block = self.count // self.blocks
        wanted = kept / self.blocks
        step = max(1, round_to // math.gcd(round_to, self.blocks * self.width))
        return self.blocks * min(per_block, max(min(step, per_block), math.floor(wanted / step + 0.5) * step))


class Allocation(ABC):
    @abstractmethod
    def kept(self, units: Sequence[Unit], level: float) -> list[int]:
        """Return how many magnitudes each unit keeps at this level, before rounding; never more at a higher level."""


class Uniform(Allocation):
    def kept(self, units: Sequence[Unit], level: float) -> list[int]:
        return [unit.count - round(level * unit.count) for unit in units]


class Global(Allocation):
    def kept(self, units: Sequence[Unit], level: float) -> list[int]:
        relative = [unit.magnitudes.double() / unit.magnitudes.double().mean().clamp(min=1e-300) for unit in units]
        magnitudes = torch.cat(relative)
        stays = torch.ones(len(magnitudes), dtype=torch.bool)
        stays[smallest_k(magnitudes, share_of(level, len(magnitudes)))] = False
        return [int(mask.sum()) for mask in stays.split([unit.count for unit in units])]


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
    """damage[name]: pairs of a ratio and the change of the output with only that unit compressed."""

    damage: dict[str, list[tuple[float, float]]]

    def kept(self, units: Sequence[Unit], level: float) -> list[int]:
        changes = [change for pairs in self.damage.values() for _, change in pairs]
        largest = max((change for change in changes if math.isfinite(change)), default=0.0)  # never NaN or inf outputs
        ratios = [_ratio_at(self.damage[unit.name], level * largest) for unit in units]
        return [unit.count - math.floor(ratio * unit.count + 1e-9) for unit, ratio in zip(units, ratios, strict=True)]


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
}
SENSITIVITY = "sensitivity"


def smallest_level(enough: Callable[[float], bool], steps: int = 30) -> float | None:
    """Return the smallest level in [0, 1] that is enough, by bisection; None if not even 1 is.

    >>> round(smallest_level(lambda level: level >= 0.25), 6)
    0.25
    """
    if enough(0.0):
        return 0.0
    if not enough(1.0):
        return None
    low, high = 0.0, 1.0
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
