"""The weights that a method looks at, as stacks of matrices: filters x all else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from sparsefw.kinds import Kind, kind_of
from sparsefw.optim.assign import unfit
from sparsefw.optim.rules import Rule, find


@dataclass(frozen=True)
class Layers:
    """Weights of equal shape, treated in one go. `axis` is where their filters are."""

    parameters: tuple[Tensor, ...]
    axis: int

    def weights(self) -> Tensor:
        """(b, n, f): a copy, one matrix of n filters for each layer."""
        return self._stack(self.parameters)

    def add_to_gradients(self, change: Tensor) -> None:
        """Parameters that this step did not use have no gradient, and get none."""
        for p, matrix in zip(self.parameters, change.unbind(), strict=True):
            if p.grad is not None:
                p.grad.add_(self._shaped(matrix, p))

    def change_gradients(self, change: Callable[[Tensor], Tensor]) -> None:
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        for p, matrix in zip(self.parameters, change(self._stack(gradients)).unbind(), strict=True):
            if p.grad is not None:
                p.grad.copy_(self._shaped(matrix, p))

    def write(self, weights: Tensor) -> None:
        for p, matrix in zip(self.parameters, weights.unbind(), strict=True):
            p.copy_(self._shaped(matrix, p))

    def _stack(self, tensors: Sequence[Tensor]) -> Tensor:
        return torch.stack([t.detach().movedim(self.axis, 0).flatten(1) for t in tensors])

    def _shaped(self, matrix: Tensor, p: Tensor) -> Tensor:
        return matrix.view(p.movedim(self.axis, 0).shape).movedim(0, self.axis)


def layers_of(model: nn.Module, word: Kind | str) -> list[Layers]:
    """The layers that `constrain(model, kind)` would constrain, so that all methods compete for the same weights."""
    kind = kind_of(word)
    state = tuple((id(p), p.requires_grad, p.device) for p in model.parameters())
    known = _KNOWN.setdefault(model, {})
    if kind not in known or known[kind][0] != state:
        known[kind] = state, list(_found(model, kind))
    return known[kind][1]


# A model's layers are the same in every step, and finding them takes longer than a step of a small network.
_KNOWN: WeakKeyDictionary[nn.Module, dict[Kind, tuple[tuple, list[Layers]]]] = WeakKeyDictionary()


def _found(model: nn.Module, kind: Kind) -> Iterator[Layers]:
    alike: dict[tuple, list[Tensor]] = {}
    for c in find(model, [Rule(kind=kind.name)]):
        if c.rule is not None and not unfit(c):
            alike.setdefault((c.axis, c.parameter.shape, c.parameter.device), []).append(c.parameter)
    for (axis, *_), parameters in alike.items():
        yield Layers(tuple(parameters), axis)
