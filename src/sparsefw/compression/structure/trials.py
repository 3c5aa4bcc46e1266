"""Trials: a change of the network is permitted if, on the example, it computes what it should. What fails is found by halving."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

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


class Verdicts(NamedTuple, Generic[T]):
    """What trials of single candidates show.

    failed    those that cannot be changed, each with the reason
    doubted   those that look as if they could not
    unknown   those that cannot be tried by themselves
    """

    failed: Mapping[T, Reason]
    doubted: Collection[T]
    unknown: Collection[T]


def offenders(
    candidates: Sequence[T], problem: Problem[T], alone: Callable[[Sequence[T]], Verdicts[T]] | None = None
) -> dict[T, Reason]:
    """Return the candidates that cannot be changed, each with the reason, by halving; the others were tried together.

    Args:
        candidates: What may be changed, in order: of those that fail only together, the first is fine.
        problem: Tries to change some together.
        alone: Tries each by itself, in less time; it is asked if not all can be changed together.
    """
    reason = problem(candidates, briefly=len(candidates) > 1) if candidates else None
    if reason is None:
        return {}
    if alone is None or len(candidates) == 1:
        search: _Search[T] = _Search(problem, [])
        search.blame(candidates, reason)
        return search.reasons
    return _offenders_beside(alone(candidates), candidates, problem)


def _offenders_beside(verdicts: Verdicts[T], candidates: Sequence[T], problem: Problem[T]) -> dict[T, Reason]:
    """Return the candidates that cannot be changed, where trials of single ones show of most whether they can."""
    rest = [c for c in candidates if c not in verdicts.failed]
    doubted = [c for c in rest if c in verdicts.doubted]
    unknown = [c for c in rest if c in verdicts.unknown]
    likely = [c for c in rest if c not in verdicts.doubted and c not in verdicts.unknown]
    search = _Search(problem, likely)
    if not likely or problem(likely, briefly=True) is None:
        search.among(unknown)
        for candidate in doubted:
            search.among([candidate], briefly=True)
        fine = set(search.fine)
        before = [(c, [f for f in rest[: rest.index(c)] if f in fine]) for c in unknown if c in search.reasons]
        # Beside fewer of them, one may be fine: then the order decides.
        if all(len(some) == len(fine) or problem([*some, c], briefly=True) for c, some in before):
            return {**verdicts.failed, **search.reasons}
    search = _Search(problem, [])
    search.among(rest)
    return {**verdicts.failed, **search.reasons}


class _Search(Generic[T]):
    """The candidates that were found to be fine together, and those that are not fine beside them, with the reasons."""

    def __init__(self, problem: Problem[T], fine: Sequence[T]) -> None:
        self.problem = problem
        self.fine = list(fine)
        self.reasons: dict[T, Reason] = {}

    def among(self, some: Sequence[T], briefly: bool = False) -> None:
        """Try these beside those that are fine."""
        if not some:
            return
        reason = self.problem([*self.fine, *some], briefly=briefly or len(some) > 1)
        if reason is None:
            self.fine.extend(some)
        else:
            self.blame(some, reason)

    def blame(self, some: Sequence[T], reason: Reason) -> None:
        """Find those of these that are not fine; this is the reason if it is a single one."""
        if len(some) == 1:
            self.reasons[some[0]] = reason
            return
        self.among(some[: len(some) // 2])
        self.among(some[len(some) // 2 :])


@dataclass(frozen=True)
class Comparison:
    """Two networks that should compute the same.

    expected   makes the one network; it is told whether this is then converted to float64
    got        makes the other one, which follows the decisions of the first
    example    the input of both
    watched    layers whose outputs are compared as well; None: the networks make no decisions, and their outputs say all
    is_coarse  whether they compute with fewer digits than float32 has
    known      the runs of the first network, by whether it was in float64: comparisons with the same one may share them
    """

    expected: Callable[[bool], nn.Module]
    got: Callable[[bool], nn.Module]
    example: Any
    watched: Collection[str] | None = ()
    is_coarse: bool = False
    known: dict[bool, TrialRun] = field(default_factory=dict)

    def gap(self) -> tuple[float, bool]:
        """Return how far the networks are apart, and whether both were computed in float64.

        TF32 or bfloat16 would make equal outputs look different.
        """
        try:
            return self._gap(True), True
        except Exception:  # a model with a fixed precision, or a device without float64
            return self._gap(False), False

    def is_same(self) -> bool:
        """Return whether their own precision shows that they compute the same."""
        return not self.is_coarse and self._gap(False) < SAME

    def differs(self, briefly: bool = False) -> bool:
        """Return whether they compute something else.

        Equal outputs in float32 are equal outputs. Different ones may be so by rounding, or as TF32, and float64 decides, which
        takes twice the time and the memory; briefly: it does not where they are far apart.
        """
        if not self.is_coarse:
            gap = self._gap(False)
            if gap < SAME or (briefly and gap > CLEARLY_DIFFERENT):
                return not gap < SAME
        gap, is_exact = self.gap()
        return not gap < (SAME if is_exact else SAME_BUT_FOR_ROUNDING)

    def lead(self, is_double: bool = False) -> TrialRun:
        """Return the run of the first network."""
        if is_double not in self.known:
            self.known[is_double] = self._run(self.expected, is_double, None)
        return self.known[is_double]

    def _gap(self, is_double: bool) -> float:
        # One network at a time: in float64, each takes up to twice the memory of the model.
        if self.watched is None:  # nothing to follow: the one that may fail to run goes first
            return self._run(self.got, is_double, None).gap(self.lead(is_double))
        leader = self.lead(is_double)
        return self._run(self.got, is_double, leader).gap(leader)

    def _run(self, make: Callable[[bool], nn.Module], is_double: bool, leader: TrialRun | None) -> TrialRun:
        model = make(is_double).double() if is_double else make(is_double)
        inputs = in_double(self.example) if is_double else self.example
        return trial_run(model, inputs, leader, self.watched)


def is_coarse(model: nn.Module) -> bool:
    """Return whether a network computes with fewer digits than float32 has."""
    return any(p.dtype not in (torch.float32, torch.float64) for p in model.parameters())


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
