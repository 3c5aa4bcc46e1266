"""Rules: which parameters of a model are meant. Ordered, first match wins, nothing guessed."""

from __future__ import annotations

import fnmatch
import inspect
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor, nn

from sparsefw.geometry import Ball, Elements, Gauge, Groups, KSparse, KSupport, Spectrum, View
from sparsefw.layer_types import CONVOLUTIONS, TRANSPOSED
from sparsefw.optim.radius import FROM_WEIGHTS
from sparsefw.words import did_you_mean

Make = Callable[..., Ball]


@dataclass(frozen=True)
class Kind:
    """A word for a view, half of a region, and the layers it is meant for."""

    view: View
    types: tuple[type[nn.Module], ...]


KINDS: dict[str, Kind] = {
    "filters": Kind(Groups(), (*CONVOLUTIONS, *TRANSPOSED)),
    "rank": Kind(Spectrum(), (*CONVOLUTIONS, *TRANSPOSED)),
    "weights": Kind(Elements(), (*CONVOLUTIONS, *TRANSPOSED, nn.Linear)),
    "neurons": Kind(Groups(), (nn.Linear,)),
}
# The other half: k-support lets what it chooses grow in proportion to its gradient, k-sparse all by the same amount.
GAUGES: dict[str, Callable[[int], Gauge]] = {"k-support": KSupport, "k-sparse": KSparse}


def region_maker(view: View, gauge: str) -> Make:
    """k -> the unit ball of the view and the gauge of this name."""
    return lambda k: Ball(view, GAUGES[gauge](k))


@dataclass(frozen=True)
class Rule:
    """Parameters whose name matches the glob, or one of several, of modules of the given types, get a region.

    kind      "filters", "rank", "weights", "neurons", "N:M" such as "2:4": the weights of such layers; or a function that
              makes a region from k, or from nothing, such as SpectralKSparse or `lambda: LpBall(2)`; or None for no region
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
    gauge: str = "k-support"
    initial: float | None = None

    def __post_init__(self) -> None:
        where = f"rule {self.match!r}"
        if self.gauge not in GAUGES:
            raise ValueError(f"{where}: gauge={self.gauge!r}: there are {', '.join(GAUGES)}")
        if self.gauge != "k-support" and (not isinstance(self.kind, str) or ":" in self.kind):
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
    def takes_k(self) -> bool:
        if isinstance(self.kind, str):
            return ":" not in self.kind
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
        named = [(c, alias) for c in candidates for alias in c.aliases if rule.matches(alias.name)]
        fitting = [(c, alias) for c, alias in named if _fits(alias, rule)]
        if not fitting:
            raise ValueError(_nothing_matches(rule, candidates))
        if all(c.rule is not None for c, _ in fitting):
            raise ValueError(f"rule {rule.match!r} has no effect: an earlier rule takes everything that it matches")
        for c, alias in fitting:
            if c.rule is None:
                c.rule, c.found = rule, alias
    return candidates


def _fits(alias: Alias, rule: Rule) -> bool:
    types = rule.types if rule.types is not None else _types(rule.kind)
    # A word means the weights of its layers, not their biases.
    return (types is None or isinstance(alias.module, types)) and (
        not isinstance(rule.kind, str) or alias.local_name == "weight"
    )


def _types(kind: str | Make | None) -> tuple[type[nn.Module], ...] | None:
    if not isinstance(kind, str):
        return None
    if re.fullmatch(r"\d+:\d+", kind):
        return KINDS["weights"].types
    if kind not in KINDS:
        raise ValueError(
            f"unknown kind {kind!r}{did_you_mean(kind, KINDS)}; there are {', '.join(KINDS)} and N:M such as 2:4"
        )
    return KINDS[kind].types


def kind_name(kind: Any) -> str:
    return str(getattr(kind, "__name__", kind))


def _nothing_matches(rule: Rule, candidates: Sequence[Candidate]) -> str:
    names = [alias.name for c in candidates for alias in c.aliases]
    by_name = [name for name in names if rule.matches(name)]
    if by_name:
        types = rule.types if rule.types is not None else _types(rule.kind)
        wanted = " or ".join(t.__name__ for t in types or ())
        return f"rule {rule.match!r}: none of {', '.join(by_name[:3])}{' ...' * (len(by_name) > 3)} is the weight of a {wanted}"
    return f"rule {rule.match!r} matches no trainable parameter{did_you_mean(str(rule.match), names)}"
