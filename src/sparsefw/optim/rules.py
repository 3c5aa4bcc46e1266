"""Rules: which parameters of a model get a region. Rules are ordered, the first match wins, and nothing is guessed."""

from __future__ import annotations

import fnmatch
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor, nn

from sparsefw.geometry import Ball, View
from sparsefw.kinds import GAUGES, WEIGHTS, Kind, kind_of
from sparsefw.layer_types import input_axis, output_axis
from sparsefw.optim.radius import FROM_WEIGHTS, LARGEST_W, LEAST_W
from sparsefw.text import did_you_mean

RegionMaker = Callable[..., Ball]

TAKEN_FOR_OUTPUT = "taken for the output"


@dataclass(frozen=True)
class Rule:
    """Parameters whose name matches a glob, in modules of the given types, get a region.

    match     a glob for the names of parameters, or several
    kind      the name of a kind, such as "filters" or "2:4" (sparsefw.kinds), for the weights of that kind; or a function that
              makes a region, from k or without arguments, such as SpectralKSparse or `lambda: LpBall(2)`; or None: no region
    k         how many may grow: an int is a count, a float in (0, 1] a fraction of what the layer has, rounded down, at least 1
    w         the region's L2 diameter is 2 w times the norm of the layer's default initialisation; "from-weights": as large as a
              training of the given length needs around the weights as given
    radius    the radius of the region, instead of w
    types     module types; None: those of the kind, or any
    coupled   all matching parameters form ONE block: row j is everything that belongs to channel j
    readers   globs for those of them that read the channels: there, channel j is an input and not an output
    gauge     "k-support" or "k-sparse", where kind is a name; None: the kind's own, which may depend on the rest's optimizer
    initial   the norm of the default initialisation, for parameters that start at 0
    of_kind   these are some of the layers that a kind means by itself: the user has not named them

    >>> Rule("layer4.*", kind="rank", k=0.1).takes_k
    True
    """

    match: str | tuple[str, ...] = "*"
    kind: str | RegionMaker | None = None
    k: int | float | None = None
    w: float | str | None = None
    radius: float | None = None
    types: tuple[type[nn.Module], ...] | None = None
    coupled: bool = False
    gauge: str | None = None
    initial: float | None = None
    readers: tuple[str, ...] = ()
    of_kind: bool = False

    def __post_init__(self) -> None:
        label = f"rule {self.match!r}"
        named = self.named_kind
        if self.gauge is not None and self.gauge not in GAUGES:
            raise ValueError(f"{label}: gauge must be one of {', '.join(GAUGES)}, got {self.gauge!r}")
        if self.gauge is not None and (named is None or not named.takes_k):
            raise ValueError(f"{label}: {name_of(self.kind)} has its own gauge")
        if self.kind is None and (self.k, self.w, self.radius) != (None, None, None):
            raise ValueError(f"{label}: has no kind, so its k, w or radius would have no effect")
        if self.w is not None and self.radius is not None:
            raise ValueError(f"{label}: w and radius both say how large the region is; give one")
        if self.k is not None and not self.takes_k:
            raise ValueError(f"{label}: {name_of(self.kind)} takes no k")
        if isinstance(self.kind, Ball):
            raise ValueError(f"{label}: kind is a region already; give the function that makes it")
        is_tuple = isinstance(self.types, tuple) and all(isinstance(t, type) for t in self.types)
        if self.types is not None and not is_tuple:
            raise ValueError(f"{label}: types must be a tuple of module classes, got {self.types!r}")
        if self.readers and not self.coupled:
            raise ValueError(f"{label}: readers are parts of a coupled block; give coupled=True")
        sizes = {"radius": self.radius} if self.sized_from_weights else {"w": self.w, "radius": self.radius}
        for name, value in sizes.items():
            if value is not None and not (isinstance(value, (int, float)) and 0 < value < math.inf):
                raise ValueError(f"{label}: {name} must be a positive, finite number, got {value!r}")
        if isinstance(self.w, (int, float)) and not LEAST_W <= self.w <= LARGEST_W:
            raise ValueError(
                f"{label}: w must be between {LEAST_W:g} and {LARGEST_W:g}, got {self.w!r}; it is in units of the default "
                "initialisation, and 1 to 100 are usual"
            )

    def matches(self, name: str) -> bool:
        """Whether a parameter of this name is meant."""
        return _matches_any(name, (self.match,) if isinstance(self.match, str) else self.match)

    def is_reader(self, name: str) -> bool:
        """Whether the parameter of this name reads the channels of the block."""
        return _matches_any(name, self.readers)

    @property
    def named_kind(self) -> Kind | None:
        """The kind, where it is given by its name."""
        return kind_of(self.kind) if isinstance(self.kind, str) else None

    @property
    def names_layers(self) -> bool:
        """Whether the rule means particular layers: it leaves none of them out, not even that of the output."""
        means_all = self.match in ("*", ("*",)) and self.types is None and not self.coupled
        return self.named_kind is None or not means_all or not self.named_kind.leaves_output_free

    @property
    def sized_from_weights(self) -> bool:
        """Whether the region is sized from the weights as given."""
        return self.w == FROM_WEIGHTS

    @property
    def adamw_gauge(self) -> str | None:
        """The gauge that the region changes to beside AdamW; None where it does not, or where the user chose gauge or size."""
        is_open = self.sized_from_weights and self.gauge is None
        return self.named_kind.adamw_gauge if is_open and self.named_kind is not None else None

    @property
    def takes_k(self) -> bool:
        """Whether the region depends on k."""
        if self.named_kind is not None:
            return self.named_kind.takes_k
        return callable(self.kind) and "k" in inspect.signature(self.kind).parameters


class Alias(NamedTuple):
    """A name of a parameter, and the module that has it under `local_name`: tied weights have several."""

    name: str
    module: nn.Module
    local_name: str


@dataclass
class Candidate:
    """A trainable parameter, and the rule that applies to it.

    alias   the name and the module by which the rule matched
    view    how the rule's kind sees the parameter
    writes_output    whether this is taken for the layer that writes the output: the last layer, where a kind means all
    """

    parameter: Tensor
    aliases: list[Alias]
    rule: Rule | None = None
    alias: Alias = field(init=False)
    view: View | None = None
    writes_output: bool = False

    def __post_init__(self) -> None:
        self.alias = self.aliases[0]

    @property
    def name(self) -> str:
        return self.aliases[0].name

    @property
    def axis(self) -> int:
        """The axis of the output channels, or of the input channels in a reader of a coupled block."""
        if self.alias.local_name != "weight":
            return 0
        is_reader = self.rule is not None and self.rule.is_reader(self.alias.name)
        return input_axis(self.alias.module) if is_reader else output_axis(self.alias.module)

    @property
    def unfit_reason(self) -> str | None:
        """Why this parameter gets no region although its type fits the rule's kind; None if it gets one."""
        kind = None if self.rule is None else self.rule.named_kind
        if kind is None:
            return None
        if self.writes_output and kind.frees_output(self.alias.module):
            return TAKEN_FOR_OUTPUT
        return kind.unfit_reason(self.alias.module, self.parameter)


def _matches_any(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def match_rules(model: nn.Module, rules: list[Rule]) -> list[Candidate]:
    """Return the trainable parameters, each with the first rule that fits it.

    Raises:
        ValueError: a rule matches nothing, or nothing that an earlier rule has left.
    """
    candidates = _trainable_parameters(model)
    for rule in rules:
        views = None if rule.named_kind is None else _views(rule, rule.named_kind, model, candidates)
        fitting = [
            (candidate, alias)
            for candidate in candidates
            for alias in candidate.aliases
            if rule.matches(alias.name) and (_has_type(alias, rule) if views is None else alias.name in views)
        ]
        if not fitting:
            raise ValueError(_nothing_matches(rule, candidates))
        if all(candidate.rule is not None for candidate, _ in fitting):
            raise ValueError(f"rule {rule.match!r} has no effect: an earlier rule takes everything that it matches")
        for candidate, alias in fitting:
            if candidate.rule is None:
                candidate.rule = rule
                candidate.alias = alias
                candidate.view = None if views is None else views[alias.name]
    _mark_output(model, candidates)
    return candidates


def _mark_output(model: nn.Module, candidates: Sequence[Candidate]) -> None:
    """Mark the weight of the last layer, unless a rule names it or leaves it as the only one of its kind."""
    layers = [module for module in model.modules() if isinstance(module, WEIGHTS.layers)]
    for c in candidates:
        if c.rule is None or c.rule.names_layers or not any(alias.module is layers[-1] for alias in c.aliases):
            continue
        c.writes_output = any(o.rule is c.rule and o is not c and not o.unfit_reason for o in candidates)


def _trainable_parameters(model: nn.Module) -> list[Candidate]:
    by_parameter: dict[Tensor, Candidate] = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        owner, _, local_name = name.rpartition(".")
        alias = Alias(name, model.get_submodule(owner), local_name)
        if p in by_parameter:
            by_parameter[p].aliases.append(alias)
        elif p.requires_grad:
            if isinstance(p, nn.parameter.UninitializedParameter):
                raise ValueError(
                    f"{name}: a lazy parameter has no shape yet; run the model once before constraining it"
                )
            if p.is_meta:
                raise ValueError(f"{name}: on the device meta it has no values; load weights before constraining it")
            by_parameter[p] = Candidate(p, [alias])
    if not by_parameter:
        raise ValueError("the model has no trainable parameter")
    return list(by_parameter.values())


def _views(rule: Rule, kind: Kind, model: nn.Module, candidates: Sequence[Candidate]) -> dict[str, View]:
    """Return name -> view for the parameters that a kind means, or for weights of the types that the rule names instead."""
    if rule.types is None:
        return kind.views(model)
    aliases = [alias for candidate in candidates for alias in candidate.aliases]
    return {alias.name: kind.view for alias in aliases if alias.local_name == "weight" and _has_type(alias, rule)}


def _has_type(alias: Alias, rule: Rule) -> bool:
    return rule.types is None or isinstance(alias.module, rule.types)


def name_of(kind: Any) -> str:
    """Return the name of a kind, or of a function that makes regions, for messages."""
    return str(getattr(kind, "__name__", kind))


def _nothing_matches(rule: Rule, candidates: Sequence[Candidate]) -> str:
    names = [alias.name for candidate in candidates for alias in candidate.aliases]
    matching = [name for name in names if rule.matches(name)]
    if not matching:
        return f"rule {rule.match!r} matches no trainable parameter{did_you_mean(str(rule.match), names)}"
    some = ", ".join(matching[:3]) + (" ..." if len(matching) > 3 else "")
    if rule.types is None and rule.named_kind is not None:
        wanted = rule.named_kind.requirement + rule.named_kind.hint
    else:
        wanted = " or ".join(t.__name__ for t in rule.types or ())
    return f"rule {rule.match!r}: none of {some} is the weight of a {wanted}"
