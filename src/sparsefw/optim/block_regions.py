"""The region of a block: the ball that a rule describes, with k counted in the block and the radius that the rule asks for."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence

from sparsefw.geometry import Ball
from sparsefw.optim.block_norms import block_label, block_norms, default_norm
from sparsefw.optim.defaults import default_k
from sparsefw.optim.gauge_by_rest import large_enough
from sparsefw.optim.pace import Pace
from sparsefw.optim.radius import (
    LARGEST_GROWTH,
    equilibrium_radius,
)
from sparsefw.optim.rescale import Horizon
from sparsefw.optim.rules import Candidate, RegionMaker, Rule, name_of
from sparsefw.scalars import is_whole


def region_of_block(rule: Rule, members: Sequence[Candidate], pace: Pace) -> Ball:
    """Return the region that a rule gives to the block of these parameters.

    Raises:
        ValueError: the rule leaves k or the size open, or neither fits the block; the message names its parameters.
    """
    label = block_label(members)
    shape = block_shape(members)
    horizon = pace.horizon_of(members)
    unit = _unit_ball(rule, members, horizon)
    if rule.radius is not None:
        return unit.with_radius(rule.radius)
    if rule.w is None:
        raise ValueError(
            f"{label}: the size of the region is open; give steps, the optimizer steps of the whole training, or w, or a radius"
        )
    if rule.sized_from_weights:
        assert horizon is not None
        return _region_around_weights(unit, rule, members, horizon.rate, pace)
    initial = default_norm(rule, members)
    if initial == 0:
        raise ValueError(
            f"{label}: starts at zero, so no multiple of its initial norm is a region; give the rule a radius"
        )
    return unit.with_diameter(2 * float(rule.w) * initial, shape)


def block_shape(members: Sequence[Candidate]) -> tuple[int, ...]:
    """Return the shape that a region sees: that of a single tensor; a matrix with a row per output channel where it differs."""
    if len(members) == 1 and members[0].axis == 0:
        return tuple(members[0].parameter.shape)
    rows = {c.parameter.shape[c.axis] for c in members}
    if len(rows) > 1:
        shapes = ", ".join(f"{c.alias.name} {tuple(c.parameter.shape)}" for c in members)
        raise ValueError(f"coupled tensors must have the same length along their group axis, got {shapes}")
    columns = sum(c.parameter.numel() // c.parameter.shape[c.axis] for c in members)
    return (rows.pop(), columns)


def _region_around_weights(unit: Ball, rule: Rule, members: Sequence[Candidate], share: float, pace: Pace) -> Ball:
    """Return the region in which steps of this share keep the norms of the weights; the weights are inside."""
    label = block_label(members)
    shape = block_shape(members)
    norms = block_norms(rule, members)
    radius = equilibrium_radius(norms.start, share, pace.momentum)
    if pace.multiplies(members):
        radius = min(radius, LARGEST_GROWTH * norms.start)
    if radius == 0:
        raise ValueError(
            f"{label}: starts at zero, and its layer has no default initialisation: give the rule a radius"
        )
    region = unit.with_diameter(2 * radius, shape)
    if region.contains_all_of_norm(norms.now, shape):
        return region
    return large_enough(region, [c.parameter for c in members], [c.axis for c in members])


def _unit_ball(rule: Rule, members: Sequence[Candidate], horizon: Horizon | None) -> Ball:
    """Return the rule's region with radius 1, and with k as a count."""
    label = block_label(members)
    make = _region_maker(rule, members)
    parameters = inspect.signature(make).parameters.values()
    needs = [p.name for p in parameters if p.default is p.empty and p.name != "k"]
    if needs:
        raise ValueError(
            f"{label}: {name_of(make)} needs {', '.join(needs)} too; give a function such as `lambda: LpBall(2)`"
        )
    if rule.k is None and rule.takes_k and horizon is None:
        raise ValueError(
            f"{label}: give steps, the optimizer steps of the whole training, and nothing else is needed; or for the paper's "
            "rule k (how many may grow: an int is a count, a float in (0, 1] a fraction) and w"
        )
    unit = make(k=1) if rule.takes_k else make()
    if not isinstance(unit, Ball):
        raise ValueError(f"{label}: {name_of(make)} makes no ball around 0, so it cannot constrain a weight")
    if not rule.takes_k:
        return unit
    k = default_k(unit.view, horizon.steps) if rule.k is None and horizon is not None else rule.k
    return make(k=_as_count(k, unit.view.count(block_shape(members)), label))  # type: ignore[arg-type]


def _region_maker(rule: Rule, members: Sequence[Candidate]) -> RegionMaker:
    kind = rule.named_kind
    if kind is None:
        return rule.kind  # type: ignore[return-value]
    first = members[0]
    return kind.region_maker(first.view or kind.view, rule.gauge, first.axis)


def _as_count(k: int | float, count: int, label: str) -> int:
    """Return k as a count: an int unchanged; a float in (0, 1] as that fraction of `count`, rounded down, at least 1."""
    if not (is_whole(k) or isinstance(k, float)):
        raise ValueError(f"{label}: k must be an int (a count) or a float in (0, 1] (a fraction), got {k!r}")
    if is_whole(k):
        if not 1 <= k <= count:
            raise ValueError(
                f"{label}: k={k} must be between 1 and the {count} that the layer has (a float would be a fraction)"
            )
        return int(k)
    if not 0 < k <= 1:
        raise ValueError(f"{label}: k={k} as a fraction must be in (0, 1]; write an int for a count")
    return max(1, math.floor(k * count + 1e-9))  # 0.3 * 10 is 2.999... in floats
