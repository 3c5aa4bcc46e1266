"""Rules for `constrain` beyond the kinds: filters that are removed together, and all tensors that no kind covers."""

from __future__ import annotations

import glob
from typing import Any

from torch import nn

from sparsefw.compression.structure.channels import Channels, Side
from sparsefw.compression.structure.trace import find_channels
from sparsefw.geometry import Ball, LpBall
from sparsefw.kinds import DEFAULT_GAUGE, FILTERS, WEIGHTS, ball_maker
from sparsefw.layer_types import BATCH_NORMS, CONVOLUTIONS, NORMALISATION
from sparsefw.optim.rules import Rule, match_rules


def coupled_filters(model: nn.Module, example: Any, gauge: str = DEFAULT_GAUGE) -> list[Rule]:
    """Return rules for `constrain` under which filters that can only be removed together also decay together.

    Each set of channels that is removed as a whole becomes one block. Row j of the block is every weight that writes or scales
    channel j: its filters, and the scales of its norms. Convolutions outside of all sets follow, filter by filter.

        groups = constrain(model, coupled_filters(model, images[:2]), steps=10_000)

    Args:
        model: the network.
        example: a batch of inputs, to follow the channels through the network.
        gauge: "k-support" or "k-sparse".
    """
    make_region = ball_maker(FILTERS.view, gauge)
    rules = []
    for channels in find_channels(model, example):
        names = () if channels.obstacle is not None else _names_of_rows(model, channels)
        if names:
            rules.append(Rule(names, kind=make_region, coupled=True))
    if _has_other_filters(model, rules):
        rules.append(Rule(kind=FILTERS.name, gauge=gauge))
    return rules


def _names_of_rows(model: nn.Module, channels: Channels) -> tuple[str, ...]:
    """Return patterns for the weights that have one row per channel; none where no trained convolution writes the channels."""
    one_slot_each = tuple((i,) for i in range(channels.count))
    modules = dict(model.named_modules())
    sites = [
        site
        for site in channels.sites
        if site.side in (Side.OUT, Side.EACH) and isinstance(modules.get(site.layer), (*CONVOLUTIONS, *BATCH_NORMS))
    ]
    if not any(site.side == Side.OUT for site in sites) or any(site.slots != one_slot_each for site in sites):
        return ()
    names = [f"{site.layer}.weight" for site in sites]
    trained = {name: p for name, p in model.named_parameters() if name in names and p.requires_grad}
    # A norm after a concatenation has more rows than the channels of one branch.
    rows = {name: p for name, p in trained.items() if p.shape[0] == channels.count}
    return tuple(map(glob.escape, rows)) if any(p.ndim > 1 for p in rows.values()) else ()


def _has_other_filters(model: nn.Module, rules: list[Rule]) -> bool:
    covered = {c.parameter for c in match_rules(model, rules) if c.rule is not None} if rules else set()
    filters = [c.parameter for c in match_rules(model, [Rule(kind=FILTERS.name)]) if c.rule is not None]
    return any(p not in covered for p in filters)


def rules_for_other_tensors(model: nn.Module, rules: list[Rule], w: float | str, gauge: str | None) -> list[Rule]:
    """Return rules that constrain every parameter that `rules` leave free.

    Args:
        model: the network.
        rules: the rules that come first.
        w: the size of the regions of biases of norms, which start at 0: their initial norm counts as 1.
        gauge: that of regions of single weights; None: L2 balls.
    """
    make_region = _l2_ball if gauge is None else ball_maker(WEIGHTS.view, gauge)
    free = [c for c in match_rules(model, rules) if c.rule is None]
    zero_at_start = tuple(
        glob.escape(c.name) for c in free if isinstance(c.alias.module, NORMALISATION) and c.alias.local_name == "bias"
    )
    others: list[Rule] = []
    if zero_at_start:
        others.append(Rule(zero_at_start, kind=make_region, w=w, initial=1.0))
    if len(zero_at_start) < len(free):
        others.append(Rule("*", kind=make_region))
    return others


def _l2_ball() -> Ball:
    return LpBall(2)
