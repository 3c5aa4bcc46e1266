"""Regions for the parameters that rules name, as param groups for SFW."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from sparsefw.geometry import Ball
from sparsefw.geometry.views import Groups, Spectrum
from sparsefw.kinds import kinds_in_words
from sparsefw.optim.block_regions import block_shape, region_of_block
from sparsefw.optim.gauge_by_rest import gauge_keys, gauge_notes
from sparsefw.optim.gradientless import remember_model
from sparsefw.optim.pace import Pace
from sparsefw.optim.radius import FROM_WEIGHTS, MOMENTUM
from sparsefw.optim.region_table import Block, Free, free_line, k_in_words, region_table
from sparsefw.optim.rescale import Horizon
from sparsefw.optim.rules import Candidate, RegionMaker, Rule, match_rules


class ParamGroups(list[dict[str, Any]]):
    """The param groups for SFW; printed, a table of what got which region.

    blocks     what got a region
    free       what got none
    coverage   the share of all weights that got one
    notes      the lines below the table
    """

    def __init__(
        self, groups: Sequence[dict[str, Any]], blocks: Sequence[Block], free: Sequence[Free], notes: Sequence[str]
    ) -> None:
        super().__init__(groups)
        self.blocks = list(blocks)
        self.free = list(free)
        self.notes = list(notes)

    @property
    def coverage(self) -> float:
        sizes = [(group["region"] is not None, p.numel()) for group in self for _, p in group["params"]]
        return sum(size for constrained, size in sizes if constrained) / sum(size for _, size in sizes)

    def without_decay(self, names: Iterable[str]) -> ParamGroups:
        """Return the groups with weight_decay=0 for the free parameters of these names, whatever that of SFW is.

        >>> from sparsefw import constrain
        >>> net = nn.Linear(2, 2)
        >>> for group in constrain(net, "weights", k=2, w=1.0, report=None).without_decay(["bias"]):
        ...     print([name for name, _ in group["params"]], group.get("weight_decay"))
        ['weight'] None
        ['bias'] 0.0
        """
        chosen = set(names)
        unknown = sorted(chosen - {name for group in self for name, _ in group["params"]})
        if unknown:
            raise ValueError(f"no parameter of these groups is named {unknown[0]}")
        groups: list[dict[str, Any]] = []
        for group in self:
            if group["region"] is not None:
                groups.append(group)
                continue
            decayed = [(name, p) for name, p in group["params"] if name not in chosen]
            others = [(name, p) for name, p in group["params"] if name in chosen]
            groups += [{**group, "params": decayed}] if decayed else []
            groups += [{**group, "params": others, "weight_decay": 0.0}] if others else []
        return ParamGroups(groups, self.blocks, self.free, self.notes)

    def __str__(self) -> str:
        count = sum(p.numel() for group in self for _, p in group["params"])
        covered = f"regions cover {self.coverage:.1%} of the {count:,} weights"
        lines = [region_table(self.blocks), covered, free_line(self.free), *self.notes]
        return "\n".join(line for line in lines if line)

    __repr__ = __str__


def assign_regions(
    model: nn.Module,
    rules: Sequence[Rule],
    *,
    steps: int | None = None,
    renewals: float | None = None,
    k: int | float | None = None,
    w: float | str | None = None,
    momentum: float = MOMENTUM,
) -> ParamGroups:
    """Return param groups for SFW: the parameters that the rules name get regions, all others are left to SGD or AdamW.

    The arguments are those of `constrain`; k and w are for rules that leave them open.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"constrain needs a torch.nn.Module, got {type(model).__name__}")
    if renewals is not None and steps is None:
        raise ValueError(f"renewals={renewals!r} has no effect without steps, the length of the training")
    if w == FROM_WEIGHTS and steps is None:
        raise ValueError(
            f"w={w!r} has no effect without steps: how large weights stay depends on the length of the training"
        )
    completed = [_completed(rule, steps, k, w) for rule in rules]
    if momentum != MOMENTUM and steps is None:
        raise ValueError(f"momentum={momentum!r} has no effect without steps: pass it to SFW")
    pace = Pace(model, steps, renewals, momentum)
    candidates = match_rules(model, completed)
    groups, blocks, free = _assigned(candidates, pace)
    remember_model(model)
    frozen = [name for name, p in model.named_parameters() if not p.requires_grad]
    return ParamGroups(groups, blocks, free, _notes(candidates, groups, pace, frozen))


def as_rules(what: str | RegionMaker | Rule | Sequence[Rule], k: int | float | None, gauge: str | None) -> list[Rule]:
    """Return what users ask for as rules: a kind, a function that makes a region, or rules."""
    if isinstance(what, (str, Ball)) or callable(what):
        return [Rule(kind=what, k=k, gauge=gauge)]
    if gauge is not None:
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


def _assigned(candidates: Sequence[Candidate], pace: Pace) -> tuple[list[dict[str, Any]], list[Block], list[Free]]:
    """Return one group per distinct region and pace, one per coupled rule and one for the rest; the blocks; what is free."""
    members_by_key: dict[_GroupKey, list[Candidate]] = {}
    members_by_rule: dict[Rule, list[Candidate]] = {}
    rest: list[Candidate] = []
    blocks: dict[Tensor, Block] = {}  # by the first parameter of each
    free: list[Free] = []
    for c in candidates:
        rule = c.rule
        reason = c.unfit_reason or pace.reason_left_free(c, candidates)
        if rule is None or rule.kind is None or reason:
            rest.append(c)
            free.append(Free(_names(c), c.alias.module, c.alias.local_name, reason))
        elif rule.coupled:
            members_by_rule.setdefault(rule, []).append(c)
        else:
            region = region_of_block(rule, [c], pace)
            axis = c.axis if isinstance(region.view, (Groups, Spectrum)) else 0
            alone = c.parameter if rule.sized_from_weights else None
            key = _GroupKey(region, axis, pace.horizon_of([c]), alone)
            members_by_key.setdefault(key, []).append(c)
            share = k_in_words(region, block_shape([c]))
            blocks[c.parameter] = Block((_names(c),), tuple(c.parameter.shape), region, share)
    groups: list[dict[str, Any]] = []
    for key, members in members_by_key.items():
        axes = [key.axis] if key.axis else None
        keys = {**pace.group_keys(key.horizon), **gauge_keys(members[0].rule)}
        groups.append({"params": _named(members), "region": key.region, "axes": axes, **keys})
    for rule, members in members_by_rule.items():
        region = region_of_block(rule, members, pace)
        keys = {**pace.group_keys(pace.horizon_of(members)), **gauge_keys(rule)}
        axes = [c.axis for c in members]
        groups.append({"params": _named(members), "region": region, "coupled": True, "axes": axes, **keys})
        shape = block_shape(members)
        share = k_in_words(region, shape)
        blocks[members[0].parameter] = Block(tuple(map(_names, members)), shape, region, share, coupled=True)
    if rest:
        groups.append({"params": _named(rest), "region": None})
    in_order = [blocks[c.parameter] for c in candidates if c.parameter in blocks]
    return groups, in_order, free


def _named(members: Sequence[Candidate]) -> list[tuple[str, Tensor]]:
    return [(c.name, c.parameter) for c in members]


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
        notes += gauge_notes(constrained)
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
