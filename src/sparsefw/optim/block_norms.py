"""The L2 norm of a block of parameters: as it is, and under the default initialisation of its layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from sparsefw.optim.radius import initial_norm, norm_at_start
from sparsefw.optim.rules import Candidate, Rule


class BlockNorms(NamedTuple):
    """The norms of a block.

    now      of the weights as given
    default  under PyTorch's default initialisation; 0 where that is unknown
    start    the norm that regions are sized from: `now`, or `default` for a block that starts at (nearly) zero
    """

    now: float
    default: float
    start: float


def block_norms(rule: Rule, members: Sequence[Candidate]) -> BlockNorms:
    """Return the norms of the block of these parameters; ValueError if it contains NaN or inf."""
    tensors = [c.parameter.detach() for c in members]
    now = math.sqrt(sum(float(t.double().square().sum()) for t in tensors))
    if not math.isfinite(now):
        raise ValueError(f"{block_label(members)}: contains NaN or inf before the first step")
    try:
        default = default_norm(rule, members)
    except ValueError:
        default = 0.0
    return BlockNorms(now, default, norm_at_start(now, default))


def default_norm(rule: Rule, members: Sequence[Candidate]) -> float:
    """Return the norm of the block under its layers' default initialisation; ValueError if a layer has none."""
    if rule.initial is not None:
        return rule.initial
    try:
        return math.sqrt(sum(initial_norm(c.alias.module, c.alias.local_name, c.parameter) ** 2 for c in members))
    except ValueError as error:
        raise ValueError(f"{block_label(members)}: {error}") from None


def block_label(members: Sequence[Candidate]) -> str:
    return ", ".join(c.alias.name for c in members)
