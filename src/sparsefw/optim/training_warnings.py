"""What SFW says unasked: a training that cannot go well is told so before it has cost an evening. Each is said once."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from sparsefw.geometry import Ball
from sparsefw.optim.rescale import Horizon
from sparsefw.optim.stacks import Stack

OFTEN = 0.5  # of the steps: a layer that is replaced in every other one cannot learn
FEW = 0.5  # of the renewals that were planned


class SFWWarning(UserWarning):
    """Nothing is broken, but the training is not what its user thinks, or will not go well."""


def warn_if_nothing_is_constrained(params: Iterable[Any]) -> None:
    """Groups that say region=None mean it."""
    if not any(isinstance(group, Mapping) and "region" in group for group in params):
        _warn(
            "nothing is constrained: without regions SFW is plain SGD; give it constrain(model, 'filters', steps=...)"
        )


# How many optimizers have stepped each weight. Two are a training and its sequel; more are an optimizer made anew every epoch.
_STEPPED_BY: Any = WeakTensorKeyDictionary()
MANY = 2


def note_first_step(groups: Sequence[Mapping[str, Any]]) -> None:
    """Count this optimizer for every weight that has a horizon."""
    for p in (p for group in groups if has_horizon(group) for p in group["params"]):
        _STEPPED_BY[p] = _STEPPED_BY.get(p, 0) + 1


def warn_if_made_anew(groups: Sequence[Mapping[str, Any]]) -> None:
    if any(_STEPPED_BY.get(p, 0) >= MANY for group in groups if has_horizon(group) for p in group["params"]):
        _warn(
            "several optimizers have trained these weights before: each begins its horizon anew, and step sizes never fall; make "
            "one SFW for the whole training (load_state_dict goes on with a saved one)"
        )


def warn_of_scaled(scaled: Mapping[str, float], count: int) -> None:
    if scaled:
        name = min(scaled, key=scaled.__getitem__)
        _warn(
            f"{len(scaled)} of {count} weights lay outside of their regions and were scaled onto them, {name} by "
            f"{scaled[name]:.2g}: a trained network is another one now; constrain(..., steps=...) sizes regions so that none is"
        )


class Watch:
    """What a training has been like so far, as far as the host knows it without waiting for the device."""

    def __init__(self, taken: Mapping[int, int] | None = None) -> None:
        self._taken = dict(taken or {})  # steps of each group, by its index
        self._from_the_start = len(self._taken)  # how many groups there were before the first step
        self._said: set[str] = set()
        self._before: dict[str, tuple[float, float]] = {}

    @classmethod
    def of(cls, groups: Sequence[Mapping[str, Any]], state: Mapping[Tensor, Mapping[str, Any]]) -> Watch:
        """Of a training that goes on."""
        taken = {}
        for index, group in enumerate(groups):
            progress = [state[p]["progress"] for p in group["params"] if "progress" in state.get(p, ())]
            taken[index] = max((int(p[0]) for p in progress), default=0)
        return cls(taken)

    @property
    def is_first(self) -> bool:
        """Whether no step was taken yet."""
        return not any(self._taken.values())

    def latecomers(self, groups: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, int]]:
        """Groups that are about to take their first step after others took some: index, and the steps that they missed.

        A group that was added meanwhile is not late: its horizon begins with it.
        """
        clock = max(self._taken.values(), default=0)
        if clock == 0:
            self._from_the_start = len(groups)
            return
        for index, group in enumerate(groups[: self._from_the_start]):
            if has_horizon(group) and group["params"][0].grad is not None and not self._taken.get(index):
                self._taken[index] = clock
                yield index, clock

    def stepped(self, groups: Sequence[Mapping[str, Any]], capturing: bool) -> None:
        for index, group in enumerate(groups):
            rule = group["rescale"]
            if not has_horizon(group) or group["params"][0].grad is None:
                continue
            self._taken[index] = self._taken.get(index, 0) + 1
            if self._taken[index] == rule.steps + 1 and not capturing:
                self._once(
                    f"more than the announced steps={rule.steps} were taken: step sizes stay at their last, smallest value; "
                    "announce the length of the whole training in constrain(..., steps=...)",
                    "beyond",
                )

    def ended(self, groups: Sequence[Mapping[str, Any]], state: Mapping[Tensor, Mapping[str, Any]]) -> None:
        """After the last announced step of a group: whether it was renewed as often as planned. Reads the device once."""
        for index, group in enumerate(groups):
            rule = group["rescale"]
            if not has_horizon(group) or self._taken.get(index) != rule.steps:
                continue
            progress = state[group["params"][0]].get("progress")
            planned = rule.rate * rule.steps / 2
            if progress is not None and float(progress[1]) < FEW * planned:
                self._once(
                    f"weights were renewed {float(progress[1]):.2g} times, where {planned:.2g} were planned: the learning rate "
                    f"was mostly below its first value, lr={rule.full_lr:g}; give SFW the highest one of the schedule",
                    "few",
                )

    def _once(self, text: str, key: str) -> None:
        if key not in self._said:
            self._said.add(key)
            _warn(text)

    def look(self, stacks: Iterable[tuple[Ball, Stack, list[str]]]) -> None:
        """Reads the device. Layers whose step size was cut at 1 in most steps since the last look are named."""
        found = list(stacks)
        gradients = [p.grad for _, stack, _ in found for block in stack.blocks for p in block if p.grad is not None]
        if gradients and not any(bool(gradient.any()) for gradient in gradients):
            self._once(
                "no gradient reaches a constrained layer: all are 0, as where no unit fires any more, and nothing is learned; "
                "normalise the inputs, or renew weights less often: constrain(..., renewals=...)",
                "dead",
            )
        if "clamped" in self._said:
            return
        often, count = [], 0
        for _, stack, names in found:
            for name, (taken, _, cut) in zip(names, stack.figures.progress.tolist(), strict=True):
                before_taken, before_cut = self._before.get(name, (0.0, 0.0))
                self._before[name] = (taken, cut)
                count += 1
                if cut - before_cut > OFTEN * max(taken - before_taken, 1):
                    often.append(name)
        if often:
            more = f" and {len(often) - 1} more of {count} layers" if len(often) > 1 else ""
            self._once(
                f"the step size was cut at 1 in most steps of {often[0]}{more}: weights are replaced and not trained; a smaller "
                "lr or a larger w may help, or constrain(..., steps=...), whose step sizes need neither",
                "clamped",
            )


def has_horizon(group: Mapping[str, Any]) -> bool:
    return group["region"] is not None and isinstance(group["rescale"], Horizon)


def _warn(text: str) -> None:
    warnings.warn(f"SFW: {text}", SFWWarning, stacklevel=4)
