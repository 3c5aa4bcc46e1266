"""A region that changes in stages while training."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

from sparsefw.geometry import Ball, KSparse, KSupport
from sparsefw.optim.groups import axes_of, blocks_of
from sparsefw.optim.layout import layout_of

STAGES = 10  # few: each change of a region costs a new plan and a new CUDA graph


class RegionSchedule(NamedTuple):
    """The way of a region to its goal.

    goal     the last region
    shape    of the blocks that it constrains
    anneal   whether k falls, from all to that of the goal
    start    the first L2 diameter, as a multiple of that of the goal
    """

    goal: Ball
    shape: tuple[int, ...]
    anneal: bool
    start: float

    @classmethod
    def of(cls, group: dict[str, Any], anneal: bool, start: float) -> RegionSchedule:
        """Return the schedule of a param group. Of its blocks, the one with the fewest magnitudes defines "all"."""
        without_names = {"coupled": False, **group, "params": [p for _, p in group["params"]]}
        region = group["region"]
        axes = axes_of(without_names)
        shapes = [layout_of(region, block, axes).shape for block in blocks_of(without_names)]
        has_k = isinstance(region.gauge, (KSupport, KSparse))
        return cls(region, min(shapes, key=region.count), anneal and has_k, start)

    def at(self, progress: float) -> Ball:
        """Return the region after this fraction of the way, which is rounded down to a stage."""
        stage = min(1.0, math.floor(progress * STAGES + 1e-9) / STAGES)
        region = self.goal
        if self.anneal:
            count = region.count(self.shape)
            k = region.gauge.support(count)
            gauge = type(region.gauge)(count - round(stage * (count - k)))  # type: ignore[call-arg]
            region = replace(region, gauge=gauge)
        diameter = self.goal.diameter(self.shape) * (self.start + stage * (1 - self.start))
        return region if diameter == region.diameter(self.shape) else region.with_diameter(diameter, self.shape)

    def plain(self) -> dict[str, Any]:
        """Return plain values for the optimizer's state_dict."""
        return {**self._asdict(), "goal": self.goal.plain()}

    @classmethod
    def from_plain(cls, values: dict[str, Any]) -> RegionSchedule:
        """Return the schedule of the values that `plain` returned."""
        return cls(**{**values, "goal": Ball.from_plain(values["goal"])})
