"""Step-size rules: how a learning rate becomes the weight eta in [0, 1] of the vertex.

A Frank-Wolfe step is theta <- (1 - eta) theta + eta v, so eta is a share of the way to a vertex, not a length. A rule
turns the learning rate into that share, for each block of a stack at once (tensors of shape (b,)):

    Unscaled       eta = lr                             the textbook step
    Diameter       eta = lr / D                         displacement at most lr (Pokutta et al. 2020)
    Gradient       eta = lr ||m|| / ||v - theta||       displacement exactly lr ||m||, as in SGD: the paper's rule
    FastGradient   eta = lr ||m|| / (D / 2)             the same with a constant denominator, as in the paper's theorem

`step_size` then clamps to [0, 1], which keeps theta feasible under every rule, and gives 0 where nothing should move.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sparsefw.geometry.gauges import negligible


class Lengths(NamedTuple):
    """What a rule may look at, each (b,): ||m||, ||g|| of this batch, ||v - theta||, and the region's L2 diameter."""

    momentum: Tensor
    batch: Tensor
    distance: Tensor
    diameter: float


class Rescale(ABC):
    @abstractmethod
    def factor(self, lengths: Lengths) -> Tensor:
        """What the learning rate is multiplied by, before clamping."""

    def plain(self) -> dict[str, Any]:
        """As plain values, for state dicts; `from_plain` is the way back."""
        return {"type": type(self).__name__, **vars(self)}

    @staticmethod
    def from_plain(values: dict[str, Any]) -> Rescale:
        arguments = dict(values)
        name = arguments.pop("type", None)
        if name not in RESCALES:
            raise ValueError(f"unknown step-size rule {name!r}; known are {', '.join(RESCALES)}")
        return RESCALES[name](**arguments)


@dataclass(frozen=True)
class Unscaled(Rescale):
    def factor(self, lengths: Lengths) -> Tensor:
        return torch.ones_like(lengths.momentum)


@dataclass(frozen=True)
class Diameter(Rescale):
    def factor(self, lengths: Lengths) -> Tensor:
        return torch.full_like(lengths.momentum, 1 / lengths.diameter)


@dataclass(frozen=True)
class Gradient(Rescale):
    """`of_batch`: the length of the batch gradient, as the paper prints it, instead of the momentum buffer's, as it was run."""

    of_batch: bool = False

    def factor(self, lengths: Lengths) -> Tensor:
        return (lengths.batch if self.of_batch else lengths.momentum) / lengths.distance


@dataclass(frozen=True)
class FastGradient(Rescale):
    of_batch: bool = False

    def factor(self, lengths: Lengths) -> Tensor:
        return (lengths.batch if self.of_batch else lengths.momentum) / (lengths.diameter / 2)


RESCALES: dict[str, type[Rescale]] = {rule.__name__: rule for rule in (Unscaled, Diameter, Gradient, FastGradient)}


def step_size(rule: Rescale, lr: float | Tensor, lengths: Lengths) -> tuple[Tensor, Tensor]:
    """eta in [0, 1], and where the clamp cut it; both (b,).

    0 where the momentum vanishes, since then every point is as good as another, and where theta is at the vertex already.
    """
    raw = lr * rule.factor(lengths)
    moves = ~negligible(lengths.momentum) & (lengths.distance > 0)
    return torch.where(moves, raw.clamp(0, 1), 0), moves & (raw > 1)
