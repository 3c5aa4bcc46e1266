"""Rules for `constrain` beyond the kinds: all tensors that no kind covers."""

from __future__ import annotations

import glob

from torch import nn

from sparsefw.geometry import Ball, LpBall
from sparsefw.kinds import WEIGHTS, ball_maker
from sparsefw.layer_types import NORMALISATION
from sparsefw.optim.rules import Rule, match_rules


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
