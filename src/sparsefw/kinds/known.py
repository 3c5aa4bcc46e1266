"""The kinds that there are, in the order in which several are applied to one network."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from sparsefw.geometry import Ball, Elements, Groups, NMBall, Spectrum, View
from sparsefw.kinds.heads import Heads
from sparsefw.kinds.kind import Kind
from sparsefw.layer_types import CONVOLUTIONS, TRANSPOSED
from sparsefw.text import did_you_mean

FILTERS = Kind("filters", "filters", Groups(), (*CONVOLUTIONS, *TRANSPOSED), of_channels=True)
NEURONS = Kind("neurons", "neurons", Groups(), (nn.Linear,), of_channels=True, least_w=3.0)
HEADS = Heads("heads", "attention heads", Groups(axis=1), (), of_channels=True, least_w=3.0)
RANK = Kind("rank", "singular values", Spectrum(), (*CONVOLUTIONS, *TRANSPOSED), least_w=0.2)
WEIGHTS = Kind(
    "weights",
    "weights",
    Elements(),
    (*CONVOLUTIONS, *TRANSPOSED, nn.Linear),
    allocation="global",
    shrinks=False,
    least_w=0.4,
)


PATTERN = "N:M"


@dataclass(frozen=True)
class Pattern(Kind):
    """N:M: of every m weights along the input channels at most n are not 0."""

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

    def request(self, ratio: float) -> dict[str, Any]:
        return {WEIGHTS.name: self.name}

    def region(self, view: View, gauge: str, transposed: bool) -> Callable[..., Ball]:
        return lambda: NMBall(self.n, self.m, axis=0 if transposed else 1)

    def unfit(self, module: nn.Module, weight: Tensor) -> str:
        inputs = weight.shape[0 if isinstance(module, TRANSPOSED) else 1]
        return super().unfit(module, weight) or (
            f"{inputs} input channels: nothing to choose" if inputs <= self.n else ""
        )


def _pattern(word: str) -> Pattern:
    numbers = re.fullmatch(r"(\d+):(\d+)", word)
    n, m = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
    if not 0 < n < m:
        raise ValueError(f"unknown kind {word!r}: a pattern is N:M with 0 < N < M, such as 2:4")
    units = f"weights in the pattern {word}"
    return Pattern(word, units, WEIGHTS.view, WEIGHTS.layers, WEIGHTS.allocation, shrinks=False, least_w=0.4, n=n, m=m)


KINDS: dict[str, Kind] = {kind.name: kind for kind in (FILTERS, NEURONS, HEADS, RANK, WEIGHTS)}


def kind_of(word: object) -> Kind:
    """The kind of this name; ValueError, the same everywhere, where there is none."""
    if isinstance(word, Kind):
        return word
    if isinstance(word, str) and word in KINDS:
        return KINDS[word]
    if isinstance(word, str) and ":" in word:
        return _pattern(word)
    close = did_you_mean(word, KINDS) if isinstance(word, str) else ""
    raise ValueError(f"unknown kind {word!r}{close}; there are {kinds_in_words()}")


def kinds_in_words() -> str:
    return f"{', '.join(KINDS)} and N:M such as 2:4"


def in_order(kinds: Iterable[Kind]) -> list[Kind]:
    """In the order in which they are applied and listed; patterns last."""
    order = list(KINDS)
    return sorted(kinds, key=lambda kind: (order.index(kind.name) if kind.name in order else len(order), kind.name))
