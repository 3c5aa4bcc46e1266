"""Warnings of SFW about trainings that will not go well, each given once and as early as possible."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from sparsefw.optim.rescale import Horizon
from sparsefw.optim.stacks import Stack, StepTotals

OFTEN = 0.5  # of the steps: a layer that is replaced in every other one cannot learn
FEW = 0.5  # of the planned renewals

# How many optimizers have stepped each weight. Two are a training and its sequel; more mean a new optimizer in every epoch.
_OPTIMIZERS: Any = WeakTensorKeyDictionary()
_MANY_OPTIMIZERS = 2


class SFWWarning(UserWarning):
    """Nothing is broken, but the training is not what its user thinks, or will not go well."""


def warn_if_unconstrained(params: Iterable[Any]) -> None:
    """Warn where no group has the key "region"; a group with region=None is unconstrained on purpose."""
    if not any(isinstance(group, Mapping) and "region" in group for group in params):
        _warn(
            "nothing is constrained: without regions SFW is plain SGD; give it constrain(model, 'filters', steps=...)"
        )


def count_optimizer(groups: Sequence[Mapping[str, Any]]) -> None:
    """Count an optimizer, at its first step, for every weight that has a horizon."""
    for p in (p for group in groups if has_horizon(group) for p in group["params"]):
        _OPTIMIZERS[p] = _OPTIMIZERS.get(p, 0) + 1


def warn_if_many_optimizers(groups: Sequence[Mapping[str, Any]]) -> None:
    """Warn where several optimizers have stepped the same weights, each of which starts its own horizon."""
    weights = (p for group in groups if has_horizon(group) for p in group["params"])
    if any(_OPTIMIZERS.get(p, 0) >= _MANY_OPTIMIZERS for p in weights):
        _warn(
            "several optimizers have trained these weights before: each starts its own horizon, and step sizes never fall; "
            "make one SFW for the whole training (load_state_dict resumes a saved one)"
        )


def warn_if_scaled(factors: Mapping[str, float], count: int) -> None:
    """Warn where weights were scaled into their regions.

    Args:
        factors: the factor of each scaled weight, by name.
        count: the number of constrained weights.
    """
    if factors:
        name = min(factors, key=factors.__getitem__)
        _warn(
            f"{len(factors)} of {count} weights were outside of their regions and were scaled onto them, {name} by "
            f"{factors[name]:.2g}: this changes a trained network; constrain(..., steps=...) sizes regions so that none is scaled"
        )


class TrainingWatch:
    """Counts the steps of each group on the host, without waiting for the device, and warns where they do not go as planned.

    taken   the steps that each group has taken before, by its index
    """

    def __init__(self, taken: Mapping[int, int] | None = None) -> None:
        self._taken = dict(taken or {})
        self._groups_at_start = len(self._taken)
        self._warned: set[str] = set()
        self._clamped_before: dict[str, tuple[float, float]] = {}

    @classmethod
    def resume(cls, groups: Sequence[Mapping[str, Any]], state: Mapping[Tensor, Mapping[str, Any]]) -> TrainingWatch:
        """Return the watch of a training that is resumed from a saved state."""
        taken = {}
        for index, group in enumerate(groups):
            progress = [state[p]["progress"] for p in group["params"] if "progress" in state.get(p, ())]
            taken[index] = max((int(p[0]) for p in progress), default=0)
        return cls(taken)

    @property
    def has_not_started(self) -> bool:
        """Whether no group has taken a step yet."""
        return not any(self._taken.values())

    def late_groups(self, groups: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, int]]:
        """Yield (index, steps missed) for groups that take their first step now, after others have taken some.

        A group that was added to the optimizer meanwhile is not late: its horizon begins with it.
        """
        clock = max(self._taken.values(), default=0)
        if clock == 0:
            self._groups_at_start = len(groups)
            return
        for index, group in enumerate(groups[: self._groups_at_start]):
            if has_horizon(group) and group["params"][0].grad is not None and not self._taken.get(index):
                self._taken[index] = clock
                yield index, clock

    def count_step(self, groups: Sequence[Mapping[str, Any]], capturing: bool) -> None:
        """Count a step of the groups that have gradients; warn where one exceeds its horizon."""
        for index, group in enumerate(groups):
            rule = group["rescale"]
            if not has_horizon(group) or group["params"][0].grad is None:
                continue
            self._taken[index] = self._taken.get(index, 0) + 1
            if self._taken[index] == rule.steps + 1 and not capturing:
                self._warn_once(
                    "beyond the horizon",
                    f"more than the announced steps={rule.steps} were taken: step sizes stay at their last, smallest value; "
                    "announce the length of the whole training in constrain(..., steps=...)",
                )

    def check_renewals(self, groups: Sequence[Mapping[str, Any]], state: Mapping[Tensor, Mapping[str, Any]]) -> None:
        """After the last announced step of a group, warn if it was renewed less often than planned; reads the device once."""
        for index, group in enumerate(groups):
            rule = group["rescale"]
            if not has_horizon(group) or self._taken.get(index) != rule.steps:
                continue
            if rule.reach is not None:  # small gradients shorten steps, and nothing is wrong
                continue
            progress = state[group["params"][0]].get("progress")
            planned = rule.rate * rule.steps / 2
            if progress is None:
                continue
            renewed = StepTotals(*progress.tolist()).renewed
            if renewed < FEW * planned:
                self._warn_once(
                    "few renewals",
                    f"weights were renewed {renewed:.2g} times instead of the planned {planned:.2g}: the learning rate "
                    f"was mostly below its first value, lr={rule.full_lr:g}; give SFW the highest one of the schedule",
                )

    def check_layers(self, stacks: Iterable[tuple[Stack, list[str]]]) -> None:
        """Warn if all gradients are 0, and about layers whose step size was cut at 1 in most steps since the last check.

        Reads the device.

        Args:
            stacks: the stacks, each with the names of its blocks.
        """
        stacks = list(stacks)
        params = [p for stack, _ in stacks for block in stack.blocks for p in block]
        gradients = [p.grad for p in params if p.grad is not None]
        if gradients and not any(bool(gradient.any()) for gradient in gradients):
            self._warn_once(
                "no gradient",
                "all gradients of constrained layers are 0, for example because no unit fires any more: nothing is learned; "
                "normalise the inputs, or renew weights less often: constrain(..., renewals=...)",
            )
        if "clamped" not in self._warned:
            self._check_clamped(stacks)

    def _check_clamped(self, stacks: Sequence[tuple[Stack, list[str]]]) -> None:
        often_clamped = []
        count = 0
        for stack, names in stacks:
            for name, (taken, _, clamped) in zip(names, stack.figures.progress.tolist(), strict=True):
                taken_before, clamped_before = self._clamped_before.get(name, (0.0, 0.0))
                self._clamped_before[name] = (taken, clamped)
                count += 1
                if clamped - clamped_before > OFTEN * max(taken - taken_before, 1):
                    often_clamped.append(name)
        if often_clamped:
            others = len(often_clamped) - 1
            more = f" and {others} more of {count} layers" if others else ""
            self._warn_once(
                "clamped",
                f"the step size was cut at 1 in most steps of {often_clamped[0]}{more}: weights are replaced, not trained; "
                "a smaller lr or a larger w may help, or constrain(..., steps=...), whose step sizes depend on neither",
            )

    def _warn_once(self, key: str, text: str) -> None:
        if key not in self._warned:
            self._warned.add(key)
            _warn(text)


def has_horizon(group: Mapping[str, Any]) -> bool:
    """Whether the group is constrained and its step sizes depend on the length of the training."""
    return group["region"] is not None and isinstance(group["rescale"], Horizon)


def _warn(text: str) -> None:
    warnings.warn(f"SFW: {text}", SFWWarning, stacklevel=4)
