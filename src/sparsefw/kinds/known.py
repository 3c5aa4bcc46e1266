"""The registered kinds, in the order in which several are applied to one network."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from sparsefw.geometry import Ball, Elements, Groups, NMBall, Spectrum, View
from sparsefw.kind_words import PATTERN, is_pattern
from sparsefw.kinds.heads import Heads
from sparsefw.kinds.kind import Kind
from sparsefw.kinds.neurons import Neurons
from sparsefw.layer_types import CONVOLUTIONS, TRANSPOSED, input_axis, largest_rank
from sparsefw.text import did_you_mean


class Rank(Kind):
    """Singular values of convolutions and linear layers.

    A linear layer that writes the output keeps its rank in compression, and is left free in training. On the paper's networks,
    whose only linear layer writes the output, these are the paper's weights: all convolutions.
    """

    def frees_output(self, module: nn.Module) -> bool:
        return isinstance(module, nn.Linear)

    def unfit_reason(self, module: nn.Module, weight: Tensor) -> str | None:
        reason = super().unfit_reason(module, weight)
        if reason is None and largest_rank(module, weight.shape) == 1:
            return "its matrices have rank 1, as those of depthwise convolutions"
        return reason


FILTERS = Kind(
    "filters",
    "filters",
    Groups(),
    (*CONVOLUTIONS, *TRANSPOSED),
    adamw_gauge="k-sparse",
    score="l1",
    of_channels=True,
)
NEURONS = Neurons("neurons", "neurons", Groups(), (nn.Linear,), score="l1", of_channels=True, least_w=3.0)
HEADS = Heads("heads", "attention heads", Groups(axis=1), (), score="l1", of_channels=True, least_w=3.0)
RANK = Rank(
    "rank", "singular values", Spectrum(), (*CONVOLUTIONS, *TRANSPOSED, nn.Linear), adamw_gauge="k-sparse", least_w=0.2
)
WEIGHTS = Kind(
    "weights",
    "weights",
    Elements(),
    (*CONVOLUTIONS, *TRANSPOSED, nn.Linear),
    allocation="global",
    shrinks=False,
    most_drawn=0.995,
    drawn="logarithm",
    least_w=0.4,
)


@dataclass(frozen=True)
class Pattern(Kind):
    """N:M: at most n of every m weights along the input channels are not 0."""

    n: int = 2
    m: int = 4

    @property
    def takes_k(self) -> bool:
        return False

    @property
    def family(self) -> str:
        return PATTERN

    @property
    def only_ratio(self) -> float:
        return 1 - self.n / self.m

    def compress_arguments(self, ratio: float) -> dict[str, Any]:
        return {WEIGHTS.name: self.name}

    def region_maker(self, view: View, gauge: str | None, output_axis: int) -> Callable[..., Ball]:
        return lambda: NMBall(self.n, self.m, axis=1 - output_axis)

    def unfit_reason(self, module: nn.Module, weight: Tensor) -> str | None:
        reason = super().unfit_reason(module, weight)
        inputs = weight.shape[input_axis(module)]
        if reason is None and inputs <= self.n:
            return f"{inputs} input channels: nothing to choose"
        return reason


def _pattern(name: str) -> Pattern:
    numbers = re.fullmatch(r"(\d+):(\d+)", name)
    n, m = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
    if not 0 < n < m:
        raise ValueError(f"unknown kind {name!r}: a pattern is N:M with 0 < N < M, such as 2:4")
    return Pattern(
        name,
        f"weights in the pattern {name}",
        WEIGHTS.view,
        WEIGHTS.layers,
        allocation=WEIGHTS.allocation,
        shrinks=False,
        least_w=WEIGHTS.least_w,
        n=n,
        m=m,
    )


KINDS: dict[str, Kind] = {kind.name: kind for kind in (FILTERS, NEURONS, HEADS, RANK, WEIGHTS)}


def kind_of(name: object) -> Kind:
    """Return the kind of this name; a kind is returned unchanged.

    Raises:
        ValueError: there is no such kind. The message is the same everywhere.

    >>> kind_of("rank").units, kind_of("2:4").only_ratio
    ('singular values', 0.5)
    """
    if isinstance(name, Kind):
        return name
    if isinstance(name, str) and name in KINDS:
        return KINDS[name]
    if isinstance(name, str) and is_pattern(name):
        return _pattern(name)
    suggestion = did_you_mean(name, KINDS) if isinstance(name, str) else ""
    raise ValueError(f"unknown kind {name!r}{suggestion}; there are {kinds_in_words()}")


def kinds_in_words() -> str:
    """Return the list of all kinds, for messages."""
    return f"{', '.join(KINDS)} and {PATTERN} such as 2:4"


def in_order(kinds: Iterable[Kind]) -> list[Kind]:
    """Return the kinds in the order in which they are applied and listed; patterns last."""
    order = list(KINDS)
    return sorted(kinds, key=lambda kind: (order.index(kind.name) if kind.name in order else len(order), kind.name))
