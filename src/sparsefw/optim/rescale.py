"""Step-size rules: how a learning rate becomes the weight eta in [0, 1] of the vertex.

A Frank-Wolfe step is theta <- (1 - eta) theta + eta v: eta is a share of the way to a vertex, not a length. A rule turns the
learning rate into that share, for all blocks of a stack at once (tensors of shape (b,)):

    Horizon        eta = min(2 R / T, 0.03) * min(lr / lr_0, 1 - t / T)    R renewals in T steps: the default; it may be bounded
                                                                           by a multiple of the displacement in SGD or AdamW
    Gradient       eta = lr ||m|| / ||v - theta||                          displacement exactly lr ||m||, as in SGD: the paper's
    FastGradient   eta = lr ||m|| / (D / 2)                                the same with a constant denominator, as in its theorem
    Diameter       eta = lr / D                                            displacement at most lr (Pokutta et al. 2020)
    Unscaled       eta = lr                                                the textbook step

`step_size` then clamps the share to [0, 1], which keeps theta feasible under every rule; where nothing should move, it is 0.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sparsefw.geometry.gauges import negligible
from sparsefw.scalars import is_number, is_whole

# The largest share that Horizon takes in one step. Short trainings would otherwise replace their weights faster than they can
# learn: at 0.1 a network on 150 images stays at chance, at 0.03 it reaches what SGD does.
LARGEST_SHARE = 0.03
# With more renewals, a weight that is never chosen vanishes in float32 long before the end, and chosen ones learn no better.
MOST_RENEWALS = 100
# Shares up to this one are not bounded by `reach`: long trainings need them all, and most layers bear them in short ones, however
# small their gradients.
SURE_SHARE = 0.001
# AdamW moves an entry by this part of lr in the root mean square on white noise, by the usual decay 0.9 of its average.
_ADAMW_STEP = math.sqrt((1 - 0.9) / (1 + 0.9))


class RuleInputs(NamedTuple):
    """The quantities that a rule may depend on: a tensor (b,) each, but for the diameter.

    momentum   ||m||
    batch      ||g|| of this batch
    distance   ||v - theta||
    diameter   the L2 diameter of the region
    taken      the steps taken before
    entries    how many weights the block has
    """

    momentum: Tensor
    batch: Tensor
    distance: Tensor
    diameter: float
    taken: Tensor
    entries: int


class Rescale(ABC):
    """A step-size rule: how a learning rate becomes a share of the way to the vertex."""

    @abstractmethod
    def share(self, lr: float | Tensor, inputs: RuleInputs) -> Tensor:
        """Return eta before clamping."""

    @classmethod
    def required_arguments(cls) -> tuple[str, ...]:
        """Return the names of the arguments without a default."""
        parameters = inspect.signature(cls).parameters.values()
        return tuple(parameter.name for parameter in parameters if parameter.default is parameter.empty)

    def starting_at(self, lr: float, rest: str = "sgd") -> Rescale:
        """Return the rule for a group whose learning rate is `lr` when it is added to an optimizer with this `rest`."""
        return self

    def plain(self) -> dict[str, Any]:
        """Return the rule as plain values for state dicts, which `from_plain` reads."""
        return {"type": type(self).__name__, **vars(self)}

    @staticmethod
    def from_plain(values: dict[str, Any]) -> Rescale:
        """Return the rule that `plain` has described."""
        arguments = dict(values)
        name = arguments.pop("type", None)
        if name not in RESCALES:
            raise ValueError(f"unknown step-size rule {name!r}; known are {', '.join(RESCALES)}")
        return RESCALES[name](**arguments)


@dataclass(frozen=True)
class Horizon(Rescale):
    """Shares that add up to `renewals` over a training of `steps`: eta_t = rate * min(lr_t / full_lr, 1 - t / steps).

    The share falls linearly to zero even at a constant learning rate, and is lower where the learning rate is (a warm-up, a
    cosine). A unit that is never chosen decays by exp(-renewals), whatever the length of training, the scale of gradients and
    weights, and the learning rate of other groups. Past `steps` the share keeps its last value.

    Such steps are as large where gradients are small. With `reach`, a share above `sure_share` moves the weights at most that
    many times as far as SGD or AdamW would: eta <= max(reach * lr * length / ||v - theta||, sure_share). The length is ||m|| for
    SGD, and 0.23 sqrt(entries) for AdamW, that of its step on white noise.

    steps      optimizer steps of the whole training
    renewals   the sum of all shares, above 0 and at most 100
    full_lr    the learning rate at which the share is full; None: that of the group when it is added to the optimizer
    reach      see above; None: no such bound
    sure_share see above
    beside     "sgd" or "adamw": whose learning rate lr is; None: that of the optimizer's `rest`

    >>> Horizon(steps=10_000, renewals=20).rate
    0.004
    """

    steps: int
    renewals: float
    full_lr: float | None = None
    reach: float | None = None
    sure_share: float = SURE_SHARE
    beside: str | None = None

    def __post_init__(self) -> None:
        if not (is_whole(self.steps) and self.steps >= 1):
            raise ValueError(
                f"steps must be an int of at least 1, the number of steps of the whole training, got {self.steps!r}"
            )
        if not (is_number(self.renewals) and 0 < self.renewals <= MOST_RENEWALS):
            raise ValueError(f"renewals must be a number above 0 and at most {MOST_RENEWALS}, got {self.renewals!r}")
        if self.full_lr is not None and not 0 < self.full_lr < math.inf:
            raise ValueError(
                f"lr={self.full_lr!r}: must be above 0, since step sizes are counted from it; give SFW the highest learning rate "
                "of the schedule, and let the scheduler multiply it"
            )
        if self.reach is not None and not (is_number(self.reach) and 0 < self.reach < math.inf):
            raise ValueError(f"reach must be a number above 0, or None, got {self.reach!r}")
        if not (is_number(self.sure_share) and 0 <= self.sure_share <= 1):
            raise ValueError(f"sure_share must be a number from 0 to 1, got {self.sure_share!r}")
        if self.beside not in (None, "sgd", "adamw"):
            raise ValueError(f"beside must be 'sgd', 'adamw' or None, got {self.beside!r}")

    @property
    def rate(self) -> float:
        """The largest share of the training."""
        return min(2 * self.renewals / self.steps, LARGEST_SHARE)

    def adamw_length(self, entries: int) -> float | None:
        """Return the length of AdamW's steps on so many weights, relative to lr; None beside SGD, whose length is ||m||."""
        return _ADAMW_STEP * math.sqrt(entries) if self.beside == "adamw" else None

    def starting_at(self, lr: float, rest: str = "sgd") -> Horizon:
        full_lr = lr if self.full_lr is None else self.full_lr
        return replace(self, full_lr=full_lr, beside=self.beside or rest)

    def share(self, lr: float | Tensor, inputs: RuleInputs) -> Tensor:
        if self.full_lr is None:
            raise ValueError("Horizon: give full_lr, the learning rate at which the share is full")
        left = (1 - inputs.taken / self.steps).clamp(min=1 / self.steps)
        scheduled = lr / self.full_lr
        lower = torch.minimum(left, scheduled.to(left)) if isinstance(scheduled, Tensor) else left.clamp(max=scheduled)
        share = (self.rate * lower).to(inputs.momentum.dtype)
        if self.reach is None:
            return share
        length = self.adamw_length(inputs.entries)
        bound = self.reach * lr * ((inputs.momentum if length is None else length) / inputs.distance)
        return torch.minimum(share, bound.clamp(min=self.sure_share))


@dataclass(frozen=True)
class Unscaled(Rescale):
    """eta = lr, the textbook step."""

    def share(self, lr: float | Tensor, inputs: RuleInputs) -> Tensor:
        return lr * torch.ones_like(inputs.momentum)


@dataclass(frozen=True)
class Diameter(Rescale):
    """eta = lr / D: displacement at most lr."""

    def share(self, lr: float | Tensor, inputs: RuleInputs) -> Tensor:
        return lr * torch.full_like(inputs.momentum, 1 / inputs.diameter)


@dataclass(frozen=True)
class Gradient(Rescale):
    """eta = lr ||m|| / ||v - theta||: displacement exactly lr ||m||, as in SGD.

    of_batch   use ||g|| of the batch, as the paper prints it, instead of ||m||, as its experiments ran
    """

    of_batch: bool = False

    def share(self, lr: float | Tensor, inputs: RuleInputs) -> Tensor:
        return lr * ((inputs.batch if self.of_batch else inputs.momentum) / inputs.distance)


@dataclass(frozen=True)
class FastGradient(Rescale):
    """eta = lr ||m|| / (D / 2): Gradient with a constant denominator.

    of_batch   use ||g|| of the batch instead of ||m||
    """

    of_batch: bool = False

    def share(self, lr: float | Tensor, inputs: RuleInputs) -> Tensor:
        return lr * ((inputs.batch if self.of_batch else inputs.momentum) / (inputs.diameter / 2))


RESCALES: dict[str, type[Rescale]] = {
    rule.__name__: rule for rule in (Horizon, Gradient, FastGradient, Diameter, Unscaled)
}


def step_size(rule: Rescale, lr: float | Tensor, inputs: RuleInputs) -> tuple[Tensor, Tensor]:
    """Return eta in [0, 1], and whether the clamp cut it; both (b,).

    eta is 0 where the momentum vanishes, since then every point is equally good, and where theta is at the vertex already.
    """
    raw = rule.share(lr, inputs)
    moves = ~negligible(inputs.momentum) & (inputs.distance > 0)
    return torch.where(moves, raw.clamp(0, 1), 0), moves & (raw > 1)
