"""Step-size rules: how a learning rate becomes the weight eta in [0, 1] of the vertex.

A Frank-Wolfe step is theta <- (1 - eta) theta + eta v: eta is a share of the way to a vertex, not a length. A rule turns
the learning rate into that share, for each block of a stack at once (tensors of shape (b,)):

    Horizon        eta = min(2 R / T, 0.03) * min(lr / lr_0, 1 - t / T)    R renewals in T steps: the default
    Gradient       eta = lr ||m|| / ||v - theta||                          displacement exactly lr ||m||, as in SGD: the paper's
    FastGradient   eta = lr ||m|| / (D / 2)                                the same with a constant denominator, as in its theorem
    Diameter       eta = lr / D                                            displacement at most lr (Pokutta et al. 2020)
    Unscaled       eta = lr                                                the textbook step

`step_size` then clamps to [0, 1], which keeps theta feasible under every rule, and gives 0 where nothing should move.
"""

from __future__ import annotations

import math
import numbers
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sparsefw.geometry.gauges import negligible

# The largest share that Horizon takes in one step. Short trainings would otherwise replace their weights faster than they can
# learn: at 0.1 a network on 150 images stays at chance, at 0.03 it reaches what SGD does.
LARGEST_SHARE = 0.03
# Beyond it a weight that is never chosen has vanished in float32 long before the end, and what is chosen learns no better.
MOST_RENEWALS = 100


class Lengths(NamedTuple):
    """What a rule may look at, each (b,): ||m||, ||g|| of this batch, ||v - theta||, the region's L2 diameter, steps taken."""

    momentum: Tensor
    batch: Tensor
    distance: Tensor
    diameter: float
    taken: Tensor


class Rescale(ABC):
    @abstractmethod
    def share(self, lr: float | Tensor, lengths: Lengths) -> Tensor:
        """eta before clamping."""

    def starting_at(self, lr: float) -> Rescale:
        """The rule for a group whose learning rate is `lr` when it is added to the optimizer."""
        return self

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
class Horizon(Rescale):
    """Shares that add up to `renewals` over a training of `steps`: eta_t = rate * min(lr_t / full_lr, 1 - t / steps).

    The share falls linearly to zero, and lower where the learning rate falls faster (a warm-up, a cosine), so that a
    constant learning rate anneals, too. What is never chosen decays by exp(-renewals), whatever the length of training, the
    scale of gradients and weights, and the learning rate of the rest. Past `steps` the share keeps its last value.

    full_lr   the learning rate at which the share is full; None: that of the group when it is added to the optimizer
    """

    steps: int
    renewals: float
    full_lr: float | None = None

    def __post_init__(self) -> None:
        whole = isinstance(self.steps, numbers.Integral) and not isinstance(self.steps, bool)
        if not (whole and self.steps >= 1):
            raise ValueError(
                f"steps must be an int of at least 1, the optimizer steps of the whole training, got {self.steps!r}"
            )
        number = isinstance(self.renewals, numbers.Real) and not isinstance(self.renewals, bool)
        if not (number and 0 < self.renewals <= MOST_RENEWALS):
            raise ValueError(f"renewals must be a number above 0 and at most {MOST_RENEWALS}, got {self.renewals!r}")
        if self.full_lr is not None and not 0 < self.full_lr < math.inf:
            raise ValueError(
                f"lr={self.full_lr!r}: must be above 0, since step sizes are counted from it; give SFW the highest learning rate "
                "of the schedule, and let the scheduler multiply it"
            )

    @property
    def rate(self) -> float:
        """The largest share of the training."""
        return min(2 * self.renewals / self.steps, LARGEST_SHARE)

    def starting_at(self, lr: float) -> Horizon:
        return replace(self, full_lr=lr) if self.full_lr is None else self

    def share(self, lr: float | Tensor, lengths: Lengths) -> Tensor:
        if self.full_lr is None:
            raise ValueError("Horizon: give full_lr, the learning rate at which the share is full")
        left = (1 - lengths.taken / self.steps).clamp(min=1 / self.steps)
        scheduled = lr / self.full_lr
        lower = torch.minimum(left, scheduled.to(left)) if isinstance(scheduled, Tensor) else left.clamp(max=scheduled)
        return (self.rate * lower).to(lengths.momentum.dtype)


@dataclass(frozen=True)
class Unscaled(Rescale):
    def share(self, lr: float | Tensor, lengths: Lengths) -> Tensor:
        return lr * torch.ones_like(lengths.momentum)


@dataclass(frozen=True)
class Diameter(Rescale):
    def share(self, lr: float | Tensor, lengths: Lengths) -> Tensor:
        return lr * torch.full_like(lengths.momentum, 1 / lengths.diameter)


@dataclass(frozen=True)
class Gradient(Rescale):
    """`of_batch`: the length of the batch gradient, as the paper prints it, instead of the momentum buffer's, as it was run."""

    of_batch: bool = False

    def share(self, lr: float | Tensor, lengths: Lengths) -> Tensor:
        return lr * ((lengths.batch if self.of_batch else lengths.momentum) / lengths.distance)


@dataclass(frozen=True)
class FastGradient(Rescale):
    of_batch: bool = False

    def share(self, lr: float | Tensor, lengths: Lengths) -> Tensor:
        return lr * ((lengths.batch if self.of_batch else lengths.momentum) / (lengths.diameter / 2))


RESCALES: dict[str, type[Rescale]] = {
    rule.__name__: rule for rule in (Horizon, Gradient, FastGradient, Diameter, Unscaled)
}


def step_size(rule: Rescale, lr: float | Tensor, lengths: Lengths) -> tuple[Tensor, Tensor]:
    """eta in [0, 1], and where the clamp cut it; both (b,).

    0 where the momentum vanishes, since then every point is as good as another, and where theta is at the vertex already.
    """
    raw = rule.share(lr, lengths)
    moves = ~negligible(lengths.momentum) & (lengths.distance > 0)
    return torch.where(moves, raw.clamp(0, 1), 0), moves & (raw > 1)
