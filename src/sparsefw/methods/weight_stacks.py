"""The weights that a method acts on, as stacks of matrices: one row per filter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from sparsefw.geometry.matrices import as_matrices, from_matrices
from sparsefw.kinds import Kind, kind_of
from sparsefw.optim.rules import Candidate, Rule, match_rules


@dataclass(frozen=True)
class WeightStack:
    """Weights of equal shape, which are changed together.

    parameters   the weights
    axis         the axis of a weight that counts its filters
    """

    parameters: tuple[Tensor, ...]
    axis: int

    def weights(self) -> Tensor:
        """Return a copy of the weights (b, n, f): for each of b layers a matrix of n filters."""
        return self._stack(self.parameters)

    def write(self, weights: Tensor) -> None:
        """Replace the weights by matrices (b, n, f)."""
        for p, matrix in zip(self.parameters, weights.unbind(), strict=True):
            p.copy_(self._shaped(matrix, p))

    def add_to_gradients(self, change: Tensor) -> None:
        """Add matrices (b, n, f) to the gradients; a weight without a gradient, which the step did not use, gets none."""
        for p, matrix in zip(self.parameters, change.unbind(), strict=True):
            if p.grad is not None:
                p.grad.add_(self._shaped(matrix, p))

    def map_gradients(self, change: Callable[[Tensor], Tensor]) -> None:
        """Replace the gradients by `change` of them; a missing gradient counts as 0 and stays missing."""
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        changed = change(self._stack(gradients))
        for p, matrix in zip(self.parameters, changed.unbind(), strict=True):
            if p.grad is not None:
                p.grad.copy_(self._shaped(matrix, p))

    def _stack(self, tensors: Sequence[Tensor]) -> Tensor:
        return torch.cat([as_matrices(t.detach(), self.axis) for t in tensors])

    def _shaped(self, matrix: Tensor, p: Tensor) -> Tensor:
        return from_matrices(matrix, p.shape, self.axis)


def weight_stacks(model: nn.Module, kind: Kind | str) -> list[WeightStack]:
    """Return the weights that `constrain(model, kind)` would constrain: all methods act on the same weights.

    >>> [stack] = weight_stacks(nn.Sequential(nn.Conv2d(1, 8, 3), nn.Linear(8, 2)), "filters")
    >>> stack.weights().shape
    torch.Size([1, 8, 9])
    """
    kind = kind_of(kind)
    state = tuple((id(p), p.requires_grad, p.device) for p in model.parameters())
    cached = _CACHE.setdefault(model, {})
    if kind not in cached or cached[kind].state != state:
        cached[kind] = _Cached(state, _find_stacks(model, kind))
    return cached[kind].stacks


@dataclass(frozen=True)
class _Cached:
    """The stacks of a model while its parameters are in this state."""

    state: tuple
    stacks: list[WeightStack]


# A model's stacks are the same in every step, and finding them takes longer than a step of a small network.
_CACHE: WeakKeyDictionary[nn.Module, dict[Kind, _Cached]] = WeakKeyDictionary()


def candidates_of(model: nn.Module, kind: Kind) -> list[Candidate]:
    """Return the weights that a method of this kind acts on."""
    return [c for c in match_rules(model, [Rule(kind=kind.name)]) if c.rule is not None and not c.unfit_reason]


def _find_stacks(model: nn.Module, kind: Kind) -> list[WeightStack]:
    by_shape: dict[tuple, list[Tensor]] = {}
    for candidate in candidates_of(model, kind):
        p = candidate.parameter
        by_shape.setdefault((candidate.axis, p.shape, p.device), []).append(p)
    return [WeightStack(tuple(parameters), axis) for (axis, *_), parameters in by_shape.items()]
