"""Rules: which parameters of a model are meant. Ordered, first match wins, nothing guessed."""

from __future__ import annotations

import fnmatch
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor, nn

from sparsefw.geometry import Ball, View
from sparsefw.kinds import DEFAULT_GAUGE, GAUGES, Kind, kind_of
from sparsefw.layer_types import TRANSPOSED
from sparsefw.optim.radius import FROM_WEIGHTS
from sparsefw.text import did_you_mean

Make = Callable[..., Ball]


@dataclass(frozen=True)
class Rule:
    """Parameters whose name matches the glob, or one of several, of modules of the given types, get a region.

    kind      a word such as "filters" or "2:4" (sparsefw.kinds): the weights that it means; or a function that makes a region
              from k, or from nothing, such as SpectralKSparse or `lambda: LpBall(2)`; or None for no region
    k         how many may grow: an int is a count, a float in (0, 1] a fraction of what the layer has, rounded down, at least 1
    w         the region's L2 diameter is 2 w times the norm of the layer's default initialisation; "from-weights": as large as a
              training of so many steps needs around the weights as given; or `radius` sets it directly
    types     module types; default: those that the kind's word means, or any
    coupled   all matching parameters form ONE block: row j is everything that belongs to channel j
    gauge     "k-support" or "k-sparse", of a word's region
    initial   counts as the norm of the initialisation, for what starts at 0
    """

    match: str | tuple[str, ...] = "*"
    kind: str | Make | None = None
    k: int | float | None = None
    w: float | str | None = None
    radius: float | None = None
    types: tuple[type[nn.Module], ...] | None = None
    coupled: bool = False
    gauge: str = DEFAULT_GAUGE
    initial: float | None = None

    def __post_init__(self) -> None:
        where = f"rule {self.match!r}"
        if self.gauge not in GAUGES:
            raise ValueError(f"{where}: gauge={self.gauge!r}: there are {', '.join(GAUGES)}")
        if self.gauge != DEFAULT_GAUGE and (self.word is None or not self.word.takes_k):
            raise ValueError(f"{where}: {kind_name(self.kind)} has its own gauge")
        if self.kind is None and (self.k, self.w, self.radius) != (None, None, None):
            raise ValueError(f"{where}: has no kind, so its k, w or radius would have no effect")
        if self.w is not None and self.radius is not None:
            raise ValueError(f"{where}: w and radius both say how large the region is; give one")
        if self.k is not None and not self.takes_k:
            raise ValueError(f"{where}: {kind_name(self.kind)} takes no k")
        if isinstance(self.kind, Ball):
            raise ValueError(f"{where}: kind is a region already; give the function that makes it")
        if self.types is not None and not (
            isinstance(self.types, tuple) and all(isinstance(t, type) for t in self.types)
        ):
            raise ValueError(f"{where}: types must be a tuple of module classes, got {self.types!r}")
        for name, value in (("w", None if self.w == FROM_WEIGHTS else self.w), ("radius", self.radius)):
            if value is not None and not (isinstance(value, (int, float)) and 0 < value < math.inf):
                raise ValueError(f"{where}: {name} must be a positive, finite number, got {value!r}")

    def matches(self, name: str) -> bool:
        patterns = (self.match,) if isinstance(self.match, str) else self.match
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)

    @property
    def word(self) -> Kind | None:
        """The kind, where it is given by its name."""
        return kind_of(self.kind) if isinstance(self.kind, str) else None

    @property
    def takes_k(self) -> bool:
        if self.word is not None:
            return self.word.takes_k
        return callable(self.kind) and "k" in inspect.signature(self.kind).parameters


class Alias(NamedTuple):
    """A name under which a parameter is known: tied weights have several."""

    name: str
    module: nn.Module
    local_name: str


@dataclass
class Candidate:
    """A trainable parameter, with the name and the module through which a rule found it."""

    parameter: Tensor
    aliases: list[Alias]
    rule: Rule | None = None
    found: Alias = field(init=False)
    view: View | None = None  # how the rule's word sees it

    def __post_init__(self) -> None:
        self.found = self.aliases[0]

    @property
    def name(self) -> str:
        return self.aliases[0].name

    @property
    def transposed(self) -> bool:
        return isinstance(self.found.module, TRANSPOSED) and self.found.local_name == "weight"

    @property
    def axis(self) -> int:
        """Where the output channels are: transposed convolutions keep them on axis 1."""
        return 1 if self.transposed else 0


def find(model: nn.Module, rules: list[Rule]) -> list[Candidate]:
    """The trainable parameters, each with the first rule that fits it."""
    by_parameter: dict[Tensor, Candidate] = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        owner, _, local_name = name.rpartition(".")
        alias = Alias(name, model.get_submodule(owner), local_name)
        if p in by_parameter:
            by_parameter[p].aliases.append(alias)
        elif p.requires_grad:
            if isinstance(p, nn.parameter.UninitializedParameter):
                raise ValueError(
                    f"{name}: is a lazy parameter without a shape yet; run the model once before constraining it"
                )
            by_parameter[p] = Candidate(p, [alias])
    candidates = list(by_parameter.values())
    if not candidates:
        raise ValueError("the model has no trainable parameter")
    for rule in rules:
        views = None if rule.word is None else _views(rule, rule.word, model, candidates)
        named = [(c, alias) for c in candidates for alias in c.aliases if rule.matches(alias.name)]
        fitting = [(c, alias) for c, alias in named if (_fits(alias, rule) if views is None else alias.name in views)]
        if not fitting:
            raise ValueError(_nothing_matches(rule, candidates))
        if all(c.rule is not None for c, _ in fitting):
            raise ValueError(f"rule {rule.match!r} has no effect: an earlier rule takes everything that it matches")
        for c, alias in fitting:
            if c.rule is None:
                c.rule, c.found = rule, alias
                c.view = None if views is None else views[alias.name]
    return candidates


def _views(rule: Rule, word: Kind, model: nn.Module, candidates: Sequence[Candidate]) -> dict[str, View]:
    """The parameters that a word means, by name, and how it sees them; of other layers where the rule names their types."""
    if rule.types is None:
        return word.views(model)
    aliases = [alias for c in candidates for alias in c.aliases]
    return {alias.name: word.view for alias in aliases if alias.local_name == "weight" and _fits(alias, rule)}


def _fits(alias: Alias, rule: Rule) -> bool:
    return rule.types is None or isinstance(alias.module, rule.types)


def kind_name(kind: Any) -> str:
    return str(getattr(kind, "__name__", kind))


def _nothing_matches(rule: Rule, candidates: Sequence[Candidate]) -> str:
    names = [alias.name for c in candidates for alias in c.aliases]
    by_name = [name for name in names if rule.matches(name)]
    if by_name:
        named = " or ".join(t.__name__ for t in rule.types or ())
        wanted = rule.word.looks_for if rule.types is None and rule.word is not None else named
        return f"rule {rule.match!r}: none of {', '.join(by_name[:3])}{' ...' * (len(by_name) > 3)} is the weight of a {wanted}"
    return f"rule {rule.match!r} matches no trainable parameter{did_you_mean(str(rule.match), names)}"
