"""constrain: regions for the parameters that rules name, how large they are, and a table of who got what."""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from sparsefw.geometry import NM, Ball
from sparsefw.geometry.precision import working_dtype
from sparsefw.geometry.views import Groups, Spectrum
from sparsefw.kinds import DEFAULT_GAUGE, WEIGHTS, kinds_in_words
from sparsefw.layer_types import NORMALISATION
from sparsefw.optim.defaults import (
    RENEWALS,
    default_k,
    has_scale_free_convolutions,
    horizon_for,
    is_convolution,
)
from sparsefw.optim.groups import tolerance
from sparsefw.optim.radius import (
    FROM_WEIGHTS,
    MOMENTUM,
    checked_momentum,
    equilibrium_length,
    given_norm,
    initial_norm,
    longest_in_stack,
)
from sparsefw.optim.rescale import Horizon
from sparsefw.optim.rules import Candidate, Make, Rule, find, kind_name
from sparsefw.optim.stacks import layout_of
from sparsefw.optim.table import table

OUTPUT = "taken for the output"


@dataclass
class Row:
    """One line of the table: what a parameter got."""

    name: str
    shape: tuple[int, ...]
    what: str
    k: str = ""
    radius: str = ""


class ParamGroups(list[dict[str, Any]]):
    """The param groups for SFW; printed, a table of what got which region."""

    def __init__(self, groups: Sequence[dict[str, Any]], rows: Sequence[Row], notes: Sequence[str]) -> None:
        super().__init__(groups)
        self.rows, self.notes = list(rows), list(notes)

    def __str__(self) -> str:
        header = ["parameter", "shape", "region", "k", "radius"]
        cells = [[r.name, "x".join(map(str, r.shape)), r.what, r.k, r.radius] for r in self.rows]
        return "\n".join([table([header, *cells]), *self.notes])

    __repr__ = __str__


def constrain(
    model: nn.Module,
    what: str | Make | Rule | Sequence[Rule],
    *,
    steps: int | None = None,
    renewals: float | None = None,
    k: int | float | None = None,
    w: float | str | None = None,
    gauge: str = DEFAULT_GAUGE,
    momentum: float = MOMENTUM,
    report: Callable[[str], Any] | None = print,
) -> ParamGroups:
    """Param groups for SFW: the parameters that `what` names get regions, all others are left to SGD (or AdamW).

    what      "filters" or "rank" (convolutions), "weights" (convolutions and linear layers), "neurons" (linear layers),
              "N:M" such as "2:4" (blocks along the input channels): the kinds; a region constructor; or a list of Rules
    steps     optimizer steps of the whole training. Everything else then has a default: regions are sized from the weights as
              given, and steps follow the horizon rule
    renewals  the dial, with steps: how often weights are renewed, above 0 and at most 100. More of them leave less of what can be
              removed later, and cost dense accuracy at some point. None: 20 for convolutions before norms, 10 for other weights,
              or as many as are safe in a short training
    k         how many filters, directions or weights may grow per layer: an int is a count, a float in (0, 1] a fraction
    w         size of the regions as in the paper, in units of the layers' default initialisation; "from-weights": as with steps.
              Without steps, SFW takes the paper's steps (rescale=Gradient())
    gauge     "k-support": what may grow does so in proportion to its gradient; "k-sparse": all by the same amount
    momentum  that of SFW: regions that are sized from weights depend on it
    report    called once with a table of what got which region; None for silence

    With steps, a word leaves out the last layer, which is taken for that of the output; a Rule that names it does not.
    The model is not changed, and with steps alone SFW does not change it either before the first step. (With w, it scales weights
    that start outside of their region onto its boundary, and says so.) Several processes must call this with the same weights.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"constrain needs a torch.nn.Module, got {type(model).__name__}")
    if renewals is not None and steps is None:
        raise ValueError(f"renewals={renewals!r} has no effect without steps, the length of the training")
    if w == FROM_WEIGHTS and steps is None:
        raise ValueError(
            f"w={w!r} has no effect without steps: how large weights stay depends on the length of the training"
        )
    rules = [_completed(rule, steps, k, w) for rule in _rules(what, k, gauge)]
    pace = _Pace(model, None if steps is None else int(Horizon(steps, RENEWALS).steps), renewals, momentum)
    candidates = find(model, rules)
    groups, rows = _groups(candidates, pace)
    result = ParamGroups(groups, rows, _notes(model, candidates, groups, pace))
    if report is not None:
        report(str(result))
    return result


def _completed(rule: Rule, steps: int | None, k: int | float | None, w: float | str | None) -> Rule:
    """The rule with what it leaves open: how many may grow, and how large the region is."""
    if rule.kind is None:
        return rule
    if rule.w is None and rule.radius is None:
        rule = replace(rule, w=FROM_WEIGHTS if w is None and steps is not None else w)
    if rule.k is None and rule.takes_k:
        rule = replace(rule, k=k)
    return rule


class _Pace:
    """How fast a training of `steps` renews the weights of this model; None: it is not told how long it will be."""

    def __init__(self, model: nn.Module, steps: int | None, renewals: float | None, momentum: float) -> None:
        self.steps, self.renewals, self.momentum = steps, renewals, checked_momentum(momentum)
        self._scale_free = has_scale_free_convolutions(model)
        # A network without any norm is a stack in which lengths multiply.
        layers = [module for module in model.modules() if isinstance(module, WEIGHTS.layers)]
        self.stacked_layers = None if is_normalised(model) else len(layers)
        self._last = layers[-1] if layers else None

    def of(self, members: Sequence[Candidate]) -> Horizon | None:
        if self.steps is None:
            return None
        return horizon_for([c.found.module for c in members], self.steps, self.renewals, self._scale_free)

    def leaves_free(self, member: Candidate, candidates: Sequence[Candidate]) -> bool:
        """Whether this is the layer that writes the output, as far as can be told: the last one, where a word means all layers.

        What it computes has the scale of the targets, which no region knows, and nothing of it can be removed.
        """
        rule = member.rule
        if self.steps is None or rule is None or rule.word is None or rule.match != "*":
            return False
        others = any(c.rule is rule and c is not member and not unfit(c) for c in candidates)
        return member.found.module is self._last and others

    def keys(self, horizon: Horizon | None) -> dict[str, Any]:
        """What the group of a block needs to keep this pace."""
        return {} if horizon is None else {"rescale": horizon, "momentum": self.momentum}

    def only_turns(self, member: Candidate) -> bool:
        """Whether steps of the horizon rule turn this weight and a norm takes its length away."""
        return self.steps is not None and self._scale_free and is_convolution(member.found.module)


def _notes(
    model: nn.Module, candidates: Sequence[Candidate], groups: Sequence[dict[str, Any]], pace: _Pace
) -> list[str]:
    notes, asked = [], pace.renewals
    if pace.steps is not None:
        reached = sorted({group["rescale"].renewals for group in groups if group["region"] is not None})
        times = " and ".join(f"{count:.3g}" for count in reached)
        few = asked is not None and reached and reached[0] < asked
        more = f" (renewals={asked:g} is more than so few steps have room for)" if few else ""
        notes += [f"weights are renewed {times} times in {pace.steps} steps{more}"] if reached else []
    if all(group["region"] is None for group in groups):
        notes.append("nothing is constrained")
    sized: dict[Any, list[Candidate]] = {}
    for c in candidates:
        if c.rule is not None and c.rule.w is not None and any(group["region"] is not None for group in groups):
            sized.setdefault(c.rule.w, []).append(c)
    if FROM_WEIGHTS in sized:
        notes.append("regions are sized from the weights as given")
    if by_w := {w: cs for w, cs in sized.items() if w != FROM_WEIGHTS}:
        idle = all(pace.only_turns(c) for cs in by_w.values() for c in cs)
        why = " (of little effect here: norms take the scale of these weights away)" if idle else ""
        notes.append(f"w = {' and '.join(f'{w:.4g}' for w in by_w)}{why}")
    frozen = [name for name, p in model.named_parameters() if not p.requires_grad]
    return [*notes, *([f"frozen, not trained: {', '.join(frozen)}"] if frozen else [])]


def _rules(what: str | Make | Rule | Sequence[Rule], k: int | float | None, gauge: str) -> list[Rule]:
    if isinstance(what, (str, Ball)) or callable(what):
        return [Rule(kind=what, k=k, gauge=gauge)]
    if gauge != DEFAULT_GAUGE:
        raise ValueError(f"gauge={gauge!r} belongs to a word such as 'weights'; rules have their own")
    rules: list[Any] = [what] if isinstance(what, Rule) else list(what) if isinstance(what, Sequence) else []
    if not rules or not all(isinstance(rule, Rule) for rule in rules):
        raise ValueError(
            f"what to constrain must be one of {kinds_in_words()}, a function that makes a region, or Rules; got {what!r}"
        )
    return rules


def is_normalised(model: nn.Module) -> bool:
    return any(isinstance(module, NORMALISATION) for module in model.modules())


def _groups(candidates: Sequence[Candidate], pace: _Pace) -> tuple[list[dict[str, Any]], list[Row]]:
    """One param group per distinct region and pace, one per coupled rule, and one for the rest.

    A region around the weights as given has a group of its own: which layers share one must not depend on what they were trained
    to, or a saved state would not fit when training goes on.
    """
    by_region: dict[tuple[Ball, int, Horizon | None, Tensor | None], list[Candidate]] = {}
    by_rule: dict[Rule, list[Candidate]] = {}
    rest: list[Candidate] = []
    described: dict[Tensor, Row] = {}
    for c in candidates:
        rule = c.rule
        reason = unfit(c) or (OUTPUT if pace.leaves_free(c, candidates) else "")
        if rule is None or rule.kind is None or reason:
            rest.append(c)
            described[c.parameter] = _row(c, None, (), reason)
        elif rule.coupled:
            by_rule.setdefault(rule, []).append(c)
        else:
            horizon = pace.of([c])
            region = _region(rule, [c], horizon, pace)
            axis = c.axis if isinstance(region.view, (Groups, Spectrum)) else 0
            alone = c.parameter if rule.w == FROM_WEIGHTS else None
            by_region.setdefault((region, axis, horizon, alone), []).append(c)
            described[c.parameter] = _row(c, region, _block_shape([c]))
    groups: list[dict[str, Any]] = [
        {"params": _named(cs), "region": region, "axes": [axis] if axis else None, **pace.keys(horizon)}
        for (region, axis, horizon, _), cs in by_region.items()
    ]
    for rule, cs in by_rule.items():
        horizon = pace.of(cs)
        region = _region(rule, cs, horizon, pace)
        axes = [c.axis for c in cs]
        groups.append({"params": _named(cs), "region": region, "coupled": True, "axes": axes, **pace.keys(horizon)})
        described.update({c.parameter: _row(c, region, _block_shape(cs), "coupled") for c in cs})
    if rest:
        groups.append({"params": _named(rest), "region": None})
    return groups, [described[c.parameter] for c in candidates]


def unfit(candidate: Candidate) -> str:
    """Why a word's region makes no sense on this layer although its type fits; empty where it does."""
    word = None if candidate.rule is None else candidate.rule.word
    return "" if word is None else word.unfit(candidate.found.module, candidate.parameter)


def _region(rule: Rule, members: Sequence[Candidate], horizon: Horizon | None, pace: _Pace) -> Ball:
    """The rule's region for one block, with k counted in that block and the radius as the rule says."""
    where, shape = ", ".join(c.found.name for c in members), _block_shape(members)
    unit = _unit_ball(rule, members, shape, where, horizon)
    if rule.radius is not None:
        return unit.with_radius(rule.radius)
    if rule.w is None:
        raise ValueError(f"{where}: how large may the region be? give steps (of the whole training), or w, or a radius")
    if rule.w == FROM_WEIGHTS:
        assert horizon is not None
        return _region_around(unit, rule, members, horizon.rate, pace, where)
    initial = _usual_norm(rule, members, where)
    if initial == 0:
        raise ValueError(
            f"{where}: starts at zero, so no multiple of its initial norm is a region; give the rule a radius"
        )
    return unit.with_diameter(2 * float(rule.w) * initial, shape)


def _region_around(unit: Ball, rule: Rule, members: Sequence[Candidate], share: float, pace: _Pace, where: str) -> Ball:
    """The region in which steps of this share keep the weights as long as they are; they lie inside."""
    shape, tensors = _block_shape(members), [c.parameter.detach() for c in members]
    own = math.sqrt(sum(float(t.double().square().sum()) for t in tensors if not t.is_meta))
    if not math.isfinite(own):
        raise ValueError(f"{where}: holds NaN or inf before the first step")
    try:
        usual = _usual_norm(rule, members, where)
    except ValueError:
        usual = 0.0
    given = given_norm(own, usual)
    length = equilibrium_length(given, share, pace.momentum)
    if pace.stacked_layers is not None:
        length = min(length, longest_in_stack(given, usual, pace.stacked_layers))
    if length == 0:
        raise ValueError(f"{where}: starts at zero, and nothing is known of a usual start: give the rule a radius")
    region = unit.with_diameter(2 * length, shape)
    if own * region.gauge.widest(region.count(shape)) > region.radius:  # perhaps outside: look closely
        empty = torch.empty(shape, dtype=working_dtype(tensors[0].dtype), device=tensors[0].device)
        point = layout_of(region, tensors, [c.axis for c in members]).gather(tensors, into=empty)
        region = region.with_radius(max(region.radius, float(region.norm(point)) * (1 + tolerance(point.dtype))))
    return region


def _usual_norm(rule: Rule, members: Sequence[Candidate], where: str) -> float:
    """The norm of the block under its layers' default initialisation."""
    if rule.initial is not None:
        return rule.initial
    try:
        return math.sqrt(sum(initial_norm(c.found.module, c.found.local_name, c.parameter) ** 2 for c in members))
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _unit_ball(
    rule: Rule, members: Sequence[Candidate], shape: Sequence[int], where: str, horizon: Horizon | None
) -> Ball:
    make = _maker(rule, members)
    needs = [p.name for p in inspect.signature(make).parameters.values() if p.default is p.empty and p.name != "k"]
    if needs:
        raise ValueError(
            f"{where}: {kind_name(make)} needs {', '.join(needs)} too; give a function such as `lambda: LpBall(2)`"
        )
    if rule.k is None and rule.takes_k and horizon is None:
        raise ValueError(
            f"{where}: give steps, the optimizer steps of the whole training, and nothing else is needed; or for the paper's "
            "rule k (how many may grow: an int is a count, a float in (0, 1] a fraction) and w"
        )
    unit = make(k=1) if rule.takes_k else make()
    if not isinstance(unit, Ball):
        raise ValueError(f"{where}: {kind_name(make)} makes no ball around 0, so it cannot constrain a weight")
    if not rule.takes_k:
        return unit
    k = default_k(unit.view, horizon.steps) if rule.k is None and horizon is not None else rule.k
    return make(k=_count(k, unit.view.count(shape), where))  # type: ignore[arg-type]


def _maker(rule: Rule, members: Sequence[Candidate]) -> Make:
    if rule.word is None:
        return rule.kind  # type: ignore[return-value]
    first = members[0]
    return rule.word.region(first.view or rule.word.view, rule.gauge, first.transposed)


def _count(k: int | float, count: int, where: str) -> int:
    """k as a count: an int is one already, a float in (0, 1] a fraction, rounded down but never to 0."""
    if isinstance(k, bool) or not isinstance(k, (numbers.Integral, float)):
        raise ValueError(f"{where}: k must be an int (a count) or a float in (0, 1] (a fraction), got {k!r}")
    if isinstance(k, numbers.Integral):
        if not 1 <= k <= count:
            raise ValueError(
                f"{where}: k={k} must be between 1 and the {count} that the layer has (a float would be a fraction)"
            )
        return int(k)
    if not 0 < k <= 1:
        raise ValueError(f"{where}: k={k} as a fraction must be in (0, 1]; write an int for a count")
    return max(1, math.floor(k * count + 1e-9))  # 0.3 * 10 is 2.999... in floats


def _block_shape(members: Sequence[Candidate]) -> tuple[int, ...]:
    """The shape a region sees: the tensor's own; a matrix of rows, one per output channel, where that is another."""
    if len(members) == 1 and members[0].axis == 0:
        return tuple(members[0].parameter.shape)
    rows = {c.parameter.shape[c.axis] for c in members}
    if len(rows) > 1:
        shapes = ", ".join(f"{c.found.name} {tuple(c.parameter.shape)}" for c in members)
        raise ValueError(f"coupled tensors must have the same length along their group axis, got {shapes}")
    return (rows.pop(), sum(c.parameter.numel() // c.parameter.shape[c.axis] for c in members))


def _named(members: Sequence[Candidate]) -> list[tuple[str, Tensor]]:
    return [(c.name, c.parameter) for c in members]


def _row(candidate: Candidate, region: Ball | None, shape: Sequence[int], remark: str = "") -> Row:
    name = candidate.name + "".join(f" = {alias.name}" for alias in candidate.aliases[1:])
    size, remark = tuple(candidate.parameter.shape), f" ({remark})" if remark else ""
    if region is None:
        return Row(name, size, f"-{remark}")
    gauge, count = region.gauge, region.count(shape)
    share = f"{gauge.n} of every {gauge.m}" if isinstance(gauge, NM) else f"{gauge.support(count)} of {count}"
    return Row(name, size, f"{region.name}{remark}", share, f"{region.radius:.4g}")
