"""The gauge of a region that depends on the optimizer of the rest: `constrain` does not know it, SFW does.

SGD moves weights in proportion to their gradients, as vertices of k-support do. AdamW moves all of them by about the same amount,
also along directions in which gradients are small, as vertices of k-sparse do. Singular values of gradients differ most: of a
step as long as AdamW's, k-support would give nearly all to few directions, and a training that ends early would lose accuracy
(benchmarks/untuned_defaults.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from sparsefw.geometry import Ball
from sparsefw.kinds import GAUGES
from sparsefw.optim.groups import ADAMW, Group, axes_of, blocks_of, tolerance
from sparsefw.optim.layout import layout_of
from sparsefw.optim.rules import Rule

_KEY = "adamw_gauge"


def gauge_keys(rule: Rule | None) -> dict[str, Any]:
    """Return the key of a param group by which SFW knows the gauge beside AdamW; none where the gauge does not change."""
    return {} if rule is None or rule.adamw_gauge is None else {_KEY: rule.adamw_gauge}


def gauge_notes(groups: Sequence[Group]) -> list[str]:
    """Return the line of the table about the gauge beside AdamW, for groups that change it."""
    return [
        f'with rest="adamw" the gauge is {gauge}: all that is chosen grows by the same amount (gauge= sets another)'
        for gauge in dict.fromkeys(group[_KEY] for group in groups if _KEY in group)
    ]


def take_gauge_beside(rest: str, group: Group) -> None:
    """Give the region of a group the gauge that it has beside this optimizer of the rest, at the same L2 diameter.

    The region is larger where it would not contain the weights, which are not changed.
    """
    gauge = group.pop(_KEY, None)
    if gauge is None or rest != ADAMW:
        return
    region = group["region"]
    (block,) = blocks_of(group)  # a region that is sized from the weights as given is that of one block
    axes = axes_of(group)
    shape = layout_of(region, block, axes).shape
    k = region.gauge.support(region.count(shape))
    changed = replace(region, gauge=GAUGES[gauge](k)).with_diameter(region.diameter(shape), shape)
    group["region"] = large_enough(changed, block, axes)


def large_enough(region: Ball, block: Sequence[Tensor], axes: Sequence[int]) -> Ball:
    """Return the region, larger where it would not contain the block of these tensors."""
    tensors = [t.detach() for t in block]
    point = layout_of(region, tensors, axes).gathered(tensors)
    if not bool(point.isfinite().all()):  # refused by its name when it enters the region
        return region
    least = float(region.norm(point)) * (1 + tolerance(point.dtype))
    return region.with_radius(max(region.radius, least))
