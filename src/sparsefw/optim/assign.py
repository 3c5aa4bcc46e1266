"""Which parameter gets which region: ordered rules, first match wins, everything listed, nothing guessed."""

from __future__ import annotations

import difflib
import fnmatch
import inspect
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from sparsefw.geometry import NM, Ball, GroupKSupportBall, KSupportBall, NMBall, SpectralKSupportBall
from sparsefw.geometry.views import Groups, Spectrum
from sparsefw.optim.radius import CONVOLUTIONS, TRANSPOSED, default_w, initial_norm

Make = Callable[..., Ball]


@dataclass(frozen=True)
class Kind:
    """A word for a region and the layers it is meant for."""

    make: Make
    types: tuple[type[nn.Module], ...]


KINDS: dict[str, Kind] = {
    "filters": Kind(GroupKSupportBall, CONVOLUTIONS),
    "rank": Kind(SpectralKSupportBall, CONVOLUTIONS),
    "weights": Kind(KSupportBall, (*CONVOLUTIONS, nn.Linear)),
    "neurons": Kind(GroupKSupportBall, (nn.Linear,)),
}


@dataclass(frozen=True)
class Rule:
    """Parameters whose name matches the glob, of modules of the given types, get a region.

    kind      "filters", "rank", "weights", "neurons", "N:M" such as "2:4", a region constructor such as SpectralKSparse
              (called as make(k=..., radius=...), or make(radius=...) where it takes no k), or None for no region
    k         how many may grow: an int is a count, a float in (0, 1] a fraction of what the layer has
    w         the region's L2 diameter is 2 w times the norm of the layer's default initialisation; `radius` sets it directly
    types     module types; default: those of the kind's word, or any
    coupled   all matching parameters form ONE block: row j is everything that belongs to channel j
    """

    match: str = "*"
    kind: str | Make | None = None
    k: int | float | None = None
    w: float | None = None
    radius: float | None = None
    types: tuple[type[nn.Module], ...] | None = None
    coupled: bool = False


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
        header = Row("parameter", (), "region", "k", "radius")
        cells = [
            [r.name, "x".join(map(str, r.shape)) if r is not header else "shape", r.what, r.k, r.radius]
            for r in (header, *self.rows)
        ]
        widths = [max(len(row[i]) for row in cells) for i in range(5)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
        ]
        return "\n".join([*lines, *self.notes])

    __repr__ = __str__


@dataclass
class _Candidate:
    """A trainable parameter with the module that owns it."""

    name: str
    parameter: Tensor
    module: nn.Module
    local_name: str
    rule: Rule | None = field(default=None)

    @property
    def axis(self) -> int:
        """Where the output channels are: transposed convolutions keep them on axis 1."""
        return 1 if isinstance(self.module, TRANSPOSED) and self.local_name == "weight" else 0


def constrain(
    model: nn.Module,
    what: str | Make | Sequence[Rule],
    *,
    k: int | float | None = None,
    w: float | None = None,
    steps: int | None = None,
    report: Callable[[str], Any] | None = print,
) -> ParamGroups:
    """Param groups for SFW: the parameters that `what` names get regions, all others are left to SGD (or AdamW).

    what      "filters" or "rank" (convolutions), "weights" (convolutions and linear layers), "neurons" (linear layers),
              "N:M" such as "2:4" (blocks along the input channels), a region constructor, or a list of Rules
    k         how many filters, directions or weights may grow per layer: an int is a count, a float in (0, 1] a fraction
    w         size of the regions in units of the layers' default initialisation; default: what a training of `steps` needs
    report    called once with a table of what got which region; None for silence

    The model is not changed. (SFW itself pulls weights that start outside of their region onto its boundary.)
    """
    rules = [Rule(kind=what)] if isinstance(what, str) or callable(what) else list(what)
    if w is None and steps is not None:
        w = default_w(steps)
    rules = [
        replace(rule, k=rule.k if rule.k is not None else k, w=rule.w if rule.w is not None else w) for rule in rules
    ]
    candidates = _assign(model, rules)
    groups, rows = _groups(candidates, rules)
    frozen = [name for name, p in model.named_parameters() if not p.requires_grad]
    notes = [f"w = {w:.4g}" + (f", for {steps} steps" if steps is not None else "")] if w is not None else []
    notes += [f"frozen, not trained: {', '.join(frozen)}"] if frozen else []
    result = ParamGroups(groups, rows, notes)
    if report is not None:
        report(str(result))
    return result


def _assign(model: nn.Module, rules: Sequence[Rule]) -> list[_Candidate]:
    candidates = [
        _Candidate(name, p, model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2])
        for name, p in model.named_parameters()
        if p.requires_grad
    ]
    for rule in rules:
        fitting = [c for c in candidates if fnmatch.fnmatchcase(c.name, rule.match) and _fits(c, rule)]
        if not fitting:
            raise ValueError(_nothing_matches(rule, candidates))
        for c in fitting:
            c.rule = c.rule or rule
    return candidates


def _fits(candidate: _Candidate, rule: Rule) -> bool:
    types = rule.types if rule.types is not None else _types(rule.kind)
    if types is not None and not isinstance(candidate.module, types):
        return False
    # A word means the weights of its layers, not their biases; a rule that names types or a constructor means what it says.
    return rule.types is not None or types is None or candidate.local_name == "weight"


def _types(kind: str | Make | None) -> tuple[type[nn.Module], ...] | None:
    if not isinstance(kind, str):
        return None
    if re.fullmatch(r"\d+:\d+", kind):
        return KINDS["weights"].types
    if kind not in KINDS:
        raise ValueError(
            f"unknown kind {kind!r}{_did_you_mean(kind, KINDS)}; there are {', '.join(KINDS)} and N:M such as 2:4"
        )
    return KINDS[kind].types


def _groups(candidates: Sequence[_Candidate], rules: Sequence[Rule]) -> tuple[list[dict[str, Any]], list[Row]]:
    """One param group per distinct region, one per coupled rule, and one for the rest."""
    by_region: dict[tuple[Ball, int], list[_Candidate]] = {}
    rest: list[_Candidate] = []
    described: dict[str, Row] = {}
    groups: list[dict[str, Any]] = []
    for c in candidates:
        shape = tuple(c.parameter.shape)
        if c.rule is None or c.rule.kind is None:
            rest.append(c)
            described[c.name] = Row(c.name, shape, "-")
        elif not c.rule.coupled:
            region = _region(c.rule, [c])
            by_region.setdefault((region, c.axis if _by_axis(region) else 0), []).append(c)
            described[c.name] = _row(c, region, _block_shape([c]))
    for rule in rules:
        members = [c for c in candidates if c.rule is rule] if rule.coupled else []
        if members:
            region = _region(rule, members)
            groups.append(
                {"params": _named(members), "region": region, "coupled": True, "axes": [c.axis for c in members]}
            )
            described.update(
                {c.name: replace(_row(c, region, _block_shape(members)), name=f"{c.name} (coupled)") for c in members}
            )
    groups = [
        {"params": _named(cs), "region": region, "axes": [axis] if axis else None}
        for (region, axis), cs in by_region.items()
    ] + groups
    if rest:
        groups.append({"params": _named(rest), "region": None})
    return groups, [described[c.name] for c in candidates]


def _region(rule: Rule, members: Sequence[_Candidate]) -> Ball:
    """The rule's region for one block, with k counted in that block and the radius set from its initialisation."""
    where = ", ".join(c.name for c in members)
    kind, shape = rule.kind, _block_shape(members)
    if isinstance(kind, str) and ":" in kind:
        n, m = map(int, kind.split(":"))
        unit = NMBall(n, m)
    else:
        make = KINDS[kind].make if isinstance(kind, str) else kind
        unit = _unit_ball(make, rule, shape, where)  # type: ignore[arg-type]
    if rule.radius is not None:
        return unit.with_radius(rule.radius)
    if rule.w is None:
        raise ValueError(
            f"{where}: how large may the region be? give steps (of the optimizer, in the whole training), or w, or a radius"
        )
    initial = math.sqrt(sum(initial_norm(c.module, c.local_name, c.parameter) ** 2 for c in members))
    if initial == 0:
        raise ValueError(
            f"{where}: starts at zero, so no multiple of its initial norm is a region; give the rule a radius"
        )
    return unit.with_diameter(2 * rule.w * initial, shape)


def _unit_ball(make: Make, rule: Rule, shape: Sequence[int], where: str) -> Ball:
    if "k" not in inspect.signature(make).parameters:
        return make()
    if rule.k is None:
        raise ValueError(
            f"{where}: how many may grow? give k, an int as a count or a float in (0, 1] as a fraction, such as k=0.2"
        )
    count = make(k=1).view.count(shape)
    return make(k=_count(rule.k, count, where))


def _count(k: int | float, count: int, where: str) -> int:
    """k as a count: an int is one already, a float in (0, 1] a fraction, rounded down but never to 0."""
    if isinstance(k, bool) or not isinstance(k, (int, float)):
        raise ValueError(f"{where}: k must be an int (a count) or a float in (0, 1] (a fraction), got {k!r}")
    if isinstance(k, int):
        if not 1 <= k <= count:
            raise ValueError(
                f"{where}: k={k} must be between 1 and the {count} that the layer has (a float would be a fraction)"
            )
        return k
    if not 0 < k <= 1:
        raise ValueError(f"{where}: k={k} as a fraction must be in (0, 1]; write an int for a count")
    return max(1, math.floor(k * count + 1e-9))  # 0.3 * 10 is 2.999... in floats


def _block_shape(members: Sequence[_Candidate]) -> tuple[int, ...]:
    """The shape a region sees: the tensor's own, with output channels first; a matrix of rows where several are coupled."""
    if len(members) == 1 and members[0].axis == 0:
        return tuple(members[0].parameter.shape)
    rows = members[0].parameter.shape[members[0].axis]
    return (rows, sum(c.parameter.numel() // c.parameter.shape[c.axis] for c in members))


def _by_axis(region: Ball) -> bool:
    return isinstance(region.view, (Groups, Spectrum))


def _named(members: Sequence[_Candidate]) -> list[tuple[str, Tensor]]:
    return [(c.name, c.parameter) for c in members]


def _row(candidate: _Candidate, region: Ball, shape: Sequence[int]) -> Row:
    gauge, count = region.gauge, region.count(shape)
    share = f"{gauge.n} of every {gauge.m}" if isinstance(gauge, NM) else f"{gauge.support(count)} of {count}"
    return Row(candidate.name, tuple(candidate.parameter.shape), region.name, share, f"{region.radius:.4g}")


def _nothing_matches(rule: Rule, candidates: Sequence[_Candidate]) -> str:
    names = [c.name for c in candidates]
    by_name = [name for name in names if fnmatch.fnmatchcase(name, rule.match)]
    if by_name:
        types = rule.types if rule.types is not None else _types(rule.kind)
        wanted = " or ".join(t.__name__ for t in types or ())
        return f"rule {rule.match!r}: none of {', '.join(by_name[:3])}{' ...' * (len(by_name) > 3)} is the weight of a {wanted}"
    return f"rule {rule.match!r} matches no trainable parameter{_did_you_mean(rule.match, names)}"


def _did_you_mean(word: str, known: Any) -> str:
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.4)
    return f"; did you mean {close[0]!r}?" if close else ""
