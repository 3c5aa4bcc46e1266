"""constrain: regions for the parameters that rules name, and a table of which parameter got which region."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from sparsefw.geometry import NM, Ball
from sparsefw.geometry.views import Groups, Spectrum
from sparsefw.kinds import DEFAULT_GAUGE, kinds_in_words
from sparsefw.optim.block_regions import block_shape, region_of_block
from sparsefw.optim.gradientless import remember_model
from sparsefw.optim.pace import Pace
from sparsefw.optim.radius import FROM_WEIGHTS, MOMENTUM
from sparsefw.optim.rescale import Horizon
from sparsefw.optim.rules import Candidate, RegionMaker, Rule, match_rules
from sparsefw.text import text_table


@dataclass(frozen=True)
class TableRow:
    """A line of the table: a parameter and its region."""

    name: str
    shape: tuple[int, ...]
    region: str
    k: str = ""
    radius: str = ""


class ParamGroups(list[dict[str, Any]]):
    """The param groups for SFW; printed, a table of which parameter got which region."""

    def __init__(self, groups: Sequence[dict[str, Any]], rows: Sequence[TableRow], notes: Sequence[str]) -> None:
        super().__init__(groups)
        self.rows = list(rows)
        self.notes = list(notes)

    def __str__(self) -> str:
        header = ["parameter", "shape", "region", "k", "radius"]
        cells = [[row.name, "x".join(map(str, row.shape)), row.region, row.k, row.radius] for row in self.rows]
        return "\n".join([text_table([header, *cells]), *self.notes])

    __repr__ = __str__


def constrain(
    model: nn.Module,
    what: str | RegionMaker | Rule | Sequence[Rule],
    *,
    steps: int | None = None,
    renewals: float | None = None,
    k: int | float | None = None,
    w: float | str | None = None,
    gauge: str | None = None,
    momentum: float = MOMENTUM,
    report: Callable[[str], Any] | None = print,
) -> ParamGroups:
    """Return param groups for SFW: the parameters that `what` names get regions, all others are left to SGD or AdamW.

    With `steps`, the name of a kind leaves out the last layer, which is taken for that of the output; a Rule that names it
    does not. The model is not changed. With `steps`, SFW does not change it before the first step either; with `w`, SFW scales
    weights that start outside of their region onto its boundary, and warns. Several processes must call this with equal weights.

    Args:
        model: the network.
        what: a kind, such as "filters" (convolutions), "rank" or "weights" (convolutions and linear layers), "neurons" (linear
            layers), "heads" (attention) or "2:4" (N of every M weights along the input channels); a function that makes a
            region; or Rules.
        steps: optimizer steps of the whole training. All else then has a default: regions are sized from the weights as given,
            and steps follow the horizon rule.
        renewals: with steps, how often weights are renewed, above 0 and at most 100. The more renewals, the smaller the units
            that are removed later; too many cost dense accuracy. None: up to 20 for convolutions before norms, 10 for other
            weights, as many as are safe in a short training, by steps no longer than those of SGD or AdamW.
        k: how many filters, directions or weights may grow per layer: an int is a count, a float in (0, 1] a fraction.
        w: the size of the regions as in the paper, in units of the layers' default initialisation; "from-weights": as with
            steps. Without steps, SFW takes the paper's steps (rescale=Gradient()).
        gauge: "k-support": what may grow does so in proportion to its gradient; "k-sparse": all by the same amount. None: the
            kind's own, k-support.
        momentum: that of SFW, on which the size of regions depends.
        report: called once with the table of which parameter got which region; None for silence.

    >>> groups = constrain(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Linear(8, 2)), "filters", k=2, w=1.0, report=None)
    >>> groups[0]["region"]
    GroupKSupportBall(k=2, radius=1.633)
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"constrain needs a torch.nn.Module, got {type(model).__name__}")
    if renewals is not None and steps is None:
        raise ValueError(f"renewals={renewals!r} has no effect without steps, the length of the training")
    if w == FROM_WEIGHTS and steps is None:
        raise ValueError(
            f"w={w!r} has no effect without steps: how large weights stay depends on the length of the training"
        )
    rules = [_completed(rule, steps, k, w) for rule in _as_rules(what, k, gauge)]
    if momentum != MOMENTUM and steps is None:
        raise ValueError(f"momentum={momentum!r} has no effect without steps: pass it to SFW")
    pace = Pace(model, steps, renewals, momentum)
    candidates = match_rules(model, rules)
    groups, rows = _groups_and_rows(candidates, pace)
    remember_model(model)
    frozen = [name for name, p in model.named_parameters() if not p.requires_grad]
    result = ParamGroups(groups, rows, _notes(candidates, groups, pace, frozen))
    if report is not None:
        report(str(result))
    return result


def _as_rules(what: str | RegionMaker | Rule | Sequence[Rule], k: int | float | None, gauge: str | None) -> list[Rule]:
    if isinstance(what, (str, Ball)) or callable(what):
        return [Rule(kind=what, k=k, gauge=gauge)]
    if gauge not in (None, DEFAULT_GAUGE):
        raise ValueError(f"gauge={gauge!r} belongs to a word such as 'weights'; rules have their own")
    rules: list[Any] = [what] if isinstance(what, Rule) else list(what) if isinstance(what, Sequence) else []
    if not rules or not all(isinstance(rule, Rule) for rule in rules):
        raise ValueError(
            f"what to constrain must be one of {kinds_in_words()}, a function that makes a region, or Rules; got {what!r}"
        )
    return rules


def _completed(rule: Rule, steps: int | None, k: int | float | None, w: float | str | None) -> Rule:
    """Return the rule with its open fields filled in: how many may grow, and how large the region is."""
    if rule.kind is None:
        return rule
    if rule.w is None and rule.radius is None:
        rule = replace(rule, w=FROM_WEIGHTS if w is None and steps is not None else w)
    if rule.k is None and rule.takes_k:
        rule = replace(rule, k=k)
    return rule


@dataclass(frozen=True)
class _GroupKey:
    """What the parameters of one group have in common.

    alone   the parameter itself where its region is sized from the weights as given: which layers share a group must not depend
            on their values, or a saved state would not fit when training is resumed
    """

    region: Ball
    axis: int
    horizon: Horizon | None
    alone: Tensor | None


def _groups_and_rows(candidates: Sequence[Candidate], pace: Pace) -> tuple[list[dict[str, Any]], list[TableRow]]:
    """Return one group per distinct region and pace, one per coupled rule, and one for the rest; and the rows of the table."""
    members_by_key: dict[_GroupKey, list[Candidate]] = {}
    members_by_rule: dict[Rule, list[Candidate]] = {}
    free: list[Candidate] = []
    rows: dict[Tensor, TableRow] = {}
    for c in candidates:
        rule = c.rule
        reason = c.unfit_reason or pace.reason_left_free(c, candidates)
        if rule is None or rule.kind is None or reason:
            free.append(c)
            rows[c.parameter] = _free_row(c, reason)
        elif rule.coupled:
            members_by_rule.setdefault(rule, []).append(c)
        else:
            region = region_of_block(rule, [c], pace)
            axis = c.axis if isinstance(region.view, (Groups, Spectrum)) else 0
            alone = c.parameter if rule.sized_from_weights else None
            key = _GroupKey(region, axis, pace.horizon_of([c]), alone)
            members_by_key.setdefault(key, []).append(c)
            rows[c.parameter] = _constrained_row(c, region, [c])
    groups: list[dict[str, Any]] = []
    for key, members in members_by_key.items():
        axes = [key.axis] if key.axis else None
        groups.append({"params": _named(members), "region": key.region, "axes": axes, **pace.group_keys(key.horizon)})
    for rule, members in members_by_rule.items():
        region = region_of_block(rule, members, pace)
        keys = pace.group_keys(pace.horizon_of(members))
        axes = [c.axis for c in members]
        groups.append({"params": _named(members), "region": region, "coupled": True, "axes": axes, **keys})
        rows |= {c.parameter: _constrained_row(c, region, members) for c in members}
    if free:
        groups.append({"params": _named(free), "region": None})
    return groups, [rows[c.parameter] for c in candidates]


def _named(members: Sequence[Candidate]) -> list[tuple[str, Tensor]]:
    return [(c.name, c.parameter) for c in members]


def _free_row(candidate: Candidate, reason: str | None) -> TableRow:
    return TableRow(_names(candidate), tuple(candidate.parameter.shape), f"- ({reason})" if reason else "-")


def _constrained_row(candidate: Candidate, region: Ball, members: Sequence[Candidate]) -> TableRow:
    gauge = region.gauge
    count = region.count(block_shape(members))
    share = f"{gauge.n} of every {gauge.m}" if isinstance(gauge, NM) else f"{gauge.support(count)} of {count}"
    is_coupled = candidate.rule is not None and candidate.rule.coupled
    name = f"{region.name} (coupled)" if is_coupled else region.name
    return TableRow(_names(candidate), tuple(candidate.parameter.shape), name, share, f"{region.radius:.4g}")


def _names(candidate: Candidate) -> str:
    return candidate.name + "".join(f" = {alias.name}" for alias in candidate.aliases[1:])


def _notes(
    candidates: Sequence[Candidate], groups: Sequence[dict[str, Any]], pace: Pace, frozen: Sequence[str]
) -> list[str]:
    """Return the lines below the table: renewals, the size of regions, and frozen parameters."""
    constrained = [group for group in groups if group["region"] is not None]
    notes = []
    if constrained:
        notes += [] if pace.steps is None else [_renewals_note(constrained, pace)]
        notes += _depth_notes(candidates, pace)
        notes += _size_notes(candidates, pace)
    else:
        notes.append("nothing is constrained")
    if frozen:
        notes.append(f"frozen, not trained: {', '.join(frozen)}")
    return notes


def _renewals_note(constrained: Sequence[dict[str, Any]], pace: Pace) -> str:
    reached = sorted({group["rescale"].renewals for group in constrained})
    shown = [f"{count:.3g}" for count in reached]
    times = " and ".join(shown) if len(shown) <= 2 else f"{shown[0]} to {shown[-1]}"
    is_short = pace.renewals is not None and reached[0] < pace.renewals
    reason = f" (renewals={pace.renewals:g} is more than is safe in so few steps)" if is_short else ""
    most = "at most " * (pace.renewals is None)
    return f"weights are renewed {most}{times} times in {pace.steps} steps{reason}"


def _depth_notes(candidates: Sequence[Candidate], pace: Pace) -> list[str]:
    slowed = [c for c in candidates if c.rule is not None and c.rule.sized_from_weights and pace.multiplies([c])]
    if not slowed or pace.renewals is not None:
        return []
    return [f"{pace.depth} layers follow each other without a norm, so steps are small; renewals= sets another number"]


def _size_notes(candidates: Sequence[Candidate], pace: Pace) -> list[str]:
    members_by_rule: dict[Rule, list[Candidate]] = {}
    for c in candidates:
        if c.rule is not None and c.rule.w is not None:
            members_by_rule.setdefault(c.rule, []).append(c)
    rules_with_w = [rule for rule in members_by_rule if not rule.sized_from_weights]
    notes = []
    if len(rules_with_w) < len(members_by_rule):
        notes.append("regions are sized from the weights as given")
    if rules_with_w:
        distinct = dict.fromkeys(rule.w for rule in rules_with_w)
        sizes = " and ".join(f"{w:.4g}" for w in distinct)
        is_idle = all(pace.only_turns(c) for rule in rules_with_w for c in members_by_rule[rule])
        reason = " (of little effect here: norms take the scale of these weights away)" if is_idle else ""
        notes.append(f"w = {sizes}{reason}")
    return notes
