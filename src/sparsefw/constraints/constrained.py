"""constrain, as users call it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from sparsefw.constraints.removable import removable_units
from sparsefw.optim import ParamGroups, Rule, as_rules, assign_regions
from sparsefw.optim.radius import MOMENTUM
from sparsefw.optim.rules import RegionMaker, match_rules

_WITHOUT_EXAMPLE = "give example=, a batch of inputs, to constrain exactly what compress can remove"


def constrain(
    model: nn.Module,
    what: str | RegionMaker | Rule | Sequence[Rule],
    *,
    example: Any = None,
    steps: int | None = None,
    renewals: float | None = None,
    k: int | float | None = None,
    w: float | str | None = None,
    gauge: str | None = None,
    momentum: float = MOMENTUM,
    report: Callable[[str], Any] | None = print,
) -> ParamGroups:
    """Return param groups for SFW: the parameters that `what` names get regions, all others are left to SGD or AdamW.

    With `example`, a kind means exactly the units that `compress` can remove: channels that go together decay together, with the
    scales of their batch norms; a neuron decays with its bias and with the weights that read it. Without, it means all weights
    of its layers, one by one, and with `steps` leaves out the last layer, which is taken for that of the output.

    The model is not changed. With `steps`, SFW does not change it before the first step either; with `w`, SFW scales
    weights that start outside of their region onto its boundary, and warns. Several processes must call this with equal weights.

    Args:
        model: the network.
        what: a kind, such as "filters" (convolutions), "rank" or "weights" (convolutions and linear layers), "neurons" (linear
            layers but for those of attention), "heads" (attention) or "2:4" (N of every M weights along the input channels); a
            function that makes a region; or Rules.
        example: a batch of inputs, by which it is found out what `compress` can remove, as in `compress`.
        steps: optimizer steps of the whole training. All else then has a default: regions are sized from the weights as given,
            and steps follow the horizon rule.
        renewals: with steps, how often weights are renewed, above 0 and at most 100. The more renewals, the smaller the units
            that are removed later; too many cost dense accuracy. None: up to 20 for convolutions before norms, 10 for other
            weights, as many as are safe in a short training, by steps no longer than those of SGD or AdamW.
        k: how many filters, directions or weights may grow per layer: an int is a count, a float in (0, 1] a fraction.
        w: the size of the regions as in the paper, in units of the layers' default initialisation; "from-weights": as with
            steps. Without steps, SFW takes the paper's steps (rescale=Gradient()).
        gauge: "k-support": what may grow does so in proportion to its gradient; "k-sparse": all by the same amount. None:
            k-support; for "filters" and "rank" k-sparse in an SFW with rest="adamw", unless w is given.
        momentum: that of SFW, on which the size of regions depends.
        report: called once with the table of what got which region; None for silence.

    >>> groups = constrain(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Linear(8, 2)), "filters", k=2, w=1.0, report=None)
    >>> groups[0]["region"]
    GroupKSupportBall(k=2, radius=1.633)
    """
    rules = as_rules(what, k, gauge)
    notes: list[str] = []
    if example is not None:
        rules, notes = _rules_that_agree(model, rules, example)
    elif isinstance(what, str):
        notes = [_WITHOUT_EXAMPLE]
    groups = assign_regions(model, rules, steps=steps, renewals=renewals, k=k, w=w, momentum=momentum)
    groups.notes += notes
    if report is not None:
        report(str(groups))
    return groups


def _rules_that_agree(model: nn.Module, rules: Sequence[Rule], example: Any) -> tuple[list[Rule], list[str]]:
    """Return the rules with every kind replaced by the units that compress can remove, and what is said of the others."""
    agreeing: list[Rule] = []
    notes: list[str] = []
    for rule in rules:
        if rule.named_kind is None or rule.coupled or rule.types is not None:
            agreeing.append(rule)
            continue
        units = removable_units(model, rule, example, _taken(model, agreeing))
        agreeing += units.rules
        notes += units.lines
    return agreeing, notes


def _taken(model: nn.Module, rules: Sequence[Rule]) -> set[str]:
    """Return the parameters that these rules take, so that none is left to later ones."""
    return {c.name for c in match_rules(model, list(rules)) if c.rule is not None} if rules else set()
