"""The regions of SparseFW's variants: coupled channels, all other tensors, and sizes that change while training."""

from __future__ import annotations

import glob
import math
from dataclasses import replace
from typing import Any, NamedTuple

from torch import nn

from sparsefw.compression.structure.channels import EACH, OUT, Channels, find_channels
from sparsefw.geometry import Ball, KSparse, KSupport, LpBall
from sparsefw.kinds import DEFAULT_GAUGE, FILTERS, WEIGHTS, region_maker
from sparsefw.layer_types import BATCH_NORMS, CONVOLUTIONS, NORMALISATION
from sparsefw.optim.groups import axes_of, blocks_of
from sparsefw.optim.rules import Rule, find
from sparsefw.optim.stacks import layout_of

STAGES = 10  # in which regions change: each change costs a new plan and a new CUDA graph


def coupled_filters(model: nn.Module, example: Any, gauge: str = DEFAULT_GAUGE) -> list[Rule]:
    """Rules for `constrain`: filters that can only be removed together decay together, with the scales of their norms.

    One block for each set of channels that is removed as a whole. Row j of the block is all that belongs to channel j and goes
    with it; what reads the channels belongs to its own filters. Convolutions of no such set come last, filter by filter.
    `example` is a batch such as the model gets.

        groups = constrain(model, coupled_filters(model, images[:2]), steps=10_000)
    """
    sets = [channels for channels in find_channels(model, example) if not channels.fixed]
    make = region_maker(FILTERS.view, gauge)
    rules = [Rule(names, kind=make, coupled=True) for names in (_members(model, c) for c in sets) if names]
    return [*rules, *([Rule(kind=FILTERS.name, gauge=gauge)] if _leaves_filters(model, rules) else [])]


def _members(model: nn.Module, channels: Channels) -> tuple[str, ...]:
    """Patterns for the weights that belong to the channels, one row each; none where no convolution writes them."""
    one_each = tuple((i,) for i in range(channels.count))
    written = [site for site in channels.sites if site.side in (OUT, EACH)]
    modules = dict(model.named_modules())
    belong = [s for s in written if isinstance(modules.get(s.layer), (*CONVOLUTIONS, *BATCH_NORMS))]
    if not any(site.side == OUT for site in belong) or any(site.slots != one_each for site in belong):
        return ()
    names = [f"{site.layer}.weight" for site in belong]
    trained = {name: p for name, p in model.named_parameters() if name in names and p.requires_grad}
    # A norm behind a concatenation has more rows than the channels of one branch.
    rows = {name: p for name, p in trained.items() if p.shape[0] == channels.count}
    return tuple(map(glob.escape, rows)) if any(p.ndim > 1 for p in rows.values()) else ()


def _leaves_filters(model: nn.Module, rules: list[Rule]) -> bool:
    taken = {c.parameter for c in find(model, rules) if c.rule is not None} if rules else set()
    return any(c.rule is not None and c.parameter not in taken for c in find(model, [Rule(kind=FILTERS.name)]))


def everything_else(model: nn.Module, rules: list[Rule], w: float | str, like: str | None) -> list[Rule]:
    """Rules for all other tensors: L2 balls, or regions of weights of this gauge. What starts at 0 counts as of norm 1."""
    make = _ball if like is None else region_maker(WEIGHTS.view, like)
    left = {c.name: c for c in find(model, rules) if c.rule is None}
    zero = tuple(
        glob.escape(name)
        for name, c in left.items()
        if isinstance(c.found.module, NORMALISATION) and c.found.local_name == "bias"
    )
    found = [Rule(zero, kind=make, w=w, initial=1.0)] if zero else []
    return [*found, *([Rule("*", kind=make)] if len(zero) < len(left) else [])]


def _ball() -> Ball:
    return LpBall(2)


class RegionSchedule(NamedTuple):
    """A region on its way to `goal`, for blocks of this shape.

    With `anneal`, k falls from all to the goal's; the L2 diameter goes from `start` times the goal's to the goal's.
    """

    goal: Ball
    shape: tuple[int, ...]
    anneal: bool
    start: float

    @classmethod
    def of(cls, group: dict[str, Any], anneal: bool, start: float) -> RegionSchedule:
        """For a param group; of several blocks, that with the fewest magnitudes says what "all" is."""
        bare = {"coupled": False, **group, "params": [p for _, p in group["params"]]}
        region = group["region"]
        shapes = [layout_of(region, block, axes_of(bare)).shape for block in blocks_of(bare)]
        return cls(
            region, min(shapes, key=region.count), anneal and isinstance(region.gauge, (KSupport, KSparse)), start
        )

    def at(self, done: float) -> Ball:
        """The region when this fraction of the way has passed, in STAGES steps."""
        stage, region = min(1.0, math.floor(done * STAGES + 1e-9) / STAGES), self.goal
        if self.anneal:
            count = region.count(self.shape)
            k = region.gauge.support(count)
            region = replace(region, gauge=type(region.gauge)(count - round(stage * (count - k))))  # type: ignore[call-arg]
        diameter = self.goal.diameter(self.shape) * (self.start + stage * (1 - self.start))
        return region if diameter == region.diameter(self.shape) else region.with_diameter(diameter, self.shape)

    def plain(self) -> dict[str, Any]:
        """For an optimizer's state_dict."""
        return {**self._asdict(), "goal": self.goal.plain()}

    @classmethod
    def from_plain(cls, values: dict[str, Any]) -> RegionSchedule:
        return cls(**{**values, "goal": Ball.from_plain(values["goal"])})
