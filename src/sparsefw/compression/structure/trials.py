"""Trials: a change of the network is permitted if, on the example, it computes what it should. What fails is found by halving."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from sparsefw.compression.reasons import Reason
from sparsefw.compression.structure.copies import copy_sharing_weights
from sparsefw.compression.structure.gaps import in_double
from sparsefw.compression.structure.trial_run import TrialRun, trial_run

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)
SAME = 1e-5  # gaps of outputs below this are rounding
SAME_BUT_FOR_ROUNDING = 1e-4  # the same for a model that cannot run in float64
CLEARLY_DIFFERENT = 1e-2  # no rounding of float32 comes to that in a network that is of any use


class Problem(Protocol[T_contra]):
    """Tries to change all of these together; returns what goes wrong, None if nothing does.

    briefly: any reason will do, so that what is clearly wrong in the model's own precision is not tried in float64.
    """

    def __call__(self, candidates: Sequence[T_contra], /, briefly: bool = False) -> Reason | None: ...


def offenders(candidates: Sequence[T], problem: Problem[T]) -> dict[T, Reason]:
    """Return the candidates that cannot be changed, each with the reason, by halving; the others were tried together."""
    reasons: dict[T, Reason] = {}
    fine: list[T] = []

    def search(some: Sequence[T]) -> None:
        if not some:
            return
        reason = problem([*fine, *some], briefly=len(some) > 1)
        if reason is None:
            fine.extend(some)
        elif len(some) == 1:
            reasons[some[0]] = reason
        else:
            search(some[: len(some) // 2])
            search(some[len(some) // 2 :])

    search(candidates)
    return reasons


@dataclass(frozen=True)
class Comparison:
    """Two networks that should compute the same.

    expected   makes the one network; it is told whether this is then converted to float64
    got        makes the other one, which follows the decisions of the first
    example    the input of both
    watched    layers whose outputs are compared as well
    """

    expected: Callable[[bool], nn.Module]
    got: Callable[[bool], nn.Module]
    example: Any
    watched: Collection[str] = ()

    def gap(self) -> tuple[float, bool]:
        """Return how far the networks are apart, and whether both were computed in float64.

        TF32 or bfloat16 would make equal outputs look different.
        """
        try:
            return self._gap(True), True
        except Exception:  # a model with a fixed precision, or a device without float64
            return self._gap(False), False

    def differs(self, briefly: bool = False) -> bool:
        """Return whether they compute something else.

        Equal outputs in float32 are equal outputs. Different ones may be so by rounding, or as TF32, and float64 decides, which
        takes twice the time and the memory; briefly: it does not where they are far apart.
        """
        if all(p.dtype in (torch.float32, torch.float64) for p in self.expected(False).parameters()):
            gap = self._gap(False)
            if gap < SAME or (briefly and gap > CLEARLY_DIFFERENT):
                return not gap < SAME
        gap, is_exact = self.gap()
        return not gap < (SAME if is_exact else SAME_BUT_FOR_ROUNDING)

    def _gap(self, is_double: bool) -> float:
        # One network at a time: in float64, each takes up to twice the memory of the model.
        inputs = in_double(self.example) if is_double else self.example
        leader = self._run(self.expected, inputs, is_double, None)
        return self._run(self.got, inputs, is_double, leader).gap(leader)

    def _run(
        self, make: Callable[[bool], nn.Module], inputs: Any, is_double: bool, leader: TrialRun | None
    ) -> TrialRun:
        model = make(is_double).double() if is_double else make(is_double)
        return trial_run(model, inputs, leader, self.watched)


def with_varied_values(example: Any) -> Any:
    """Return the example with random numbers in tensors that have a single value: on zeros everything looks equal."""
    generator = torch.Generator().manual_seed(0)

    def fill(t: Any) -> Any:
        if not isinstance(t, Tensor) or not t.is_floating_point() or t.numel() < 2 or not _is_constant(t):
            return t
        return torch.randn(t.shape, generator=generator).to(t)

    return tree_map(fill, example)


def with_varied_parameters(model: nn.Module) -> nn.Module:
    """Return the model, or a copy with random numbers in parameters that have a single value, as 0 or 1e-6 from their start.

    A last layer or a scale of zeros would make every removal look harmless.
    """
    constant = {
        name for name, p in model.named_parameters() if p.is_floating_point() and p.numel() > 1 and _is_constant(p)
    }
    if not constant:
        return model
    model = copy_sharing_weights(model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name not in constant:
                continue
            value = float(p.flatten()[0])
            noise = torch.rand(p.shape, generator=generator).to(p)
            if value == 0:
                p.data = 0.2 * noise - 0.1
            else:
                p.data = (0.5 + noise) * (max(abs(value), 0.1) if value > 0 else value)
    return model


def _is_constant(tensor: Tensor) -> bool:
    """Return whether all entries are equal; most tensors show in two entries that they are not."""
    entries = tensor.detach().flatten()
    return bool(entries[0] == entries[-1]) and not bool((entries != entries[0]).any())
