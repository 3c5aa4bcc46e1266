"""What SFW says unasked: a training that cannot go well is told so before it has cost an evening. Each is said once."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from sparsefw.geometry import Ball
from sparsefw.optim.rescale import Horizon
from sparsefw.optim.stacks import Stack

OFTEN = 0.5  # of the steps: a layer that is replaced in every other one cannot learn


class SFWWarning(UserWarning):
    """Nothing is broken, but the training is not what its user thinks, or will not go well."""


def warn_if_nothing_is_constrained(params: Iterable[Any]) -> None:
    """Groups that say region=None mean it."""
    if not any(isinstance(group, Mapping) and "region" in group for group in params):
        _warn(
            "nothing is constrained: without regions SFW is plain SGD; give it constrain(model, 'filters', steps=...)"
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

    def __init__(self, taken: int = 0) -> None:
        self._taken, self._said_beyond, self._said_clamped = taken, False, False
        self._before: dict[str, tuple[float, float]] = {}

    @classmethod
    def of(cls, states: Iterable[Mapping[str, Any]]) -> Watch:
        """Of a training that goes on."""
        progress = [state["progress"] for state in states if isinstance(state.get("progress"), Tensor)]
        return cls(max((int(p[0]) for p in progress), default=0))

    def stepped(self, groups: Iterable[Mapping[str, Any]]) -> None:
        self._taken += 1
        if self._said_beyond:
            return
        for group in groups:
            rule = group["rescale"]
            if group["region"] is not None and isinstance(rule, Horizon) and self._taken > rule.steps:
                self._said_beyond = True
                return _warn(
                    f"more than the announced steps={rule.steps} were taken: step sizes stay at their last, smallest value; "
                    "announce the length of the whole training in constrain(..., steps=...)"
                )

    def look(self, stacks: Iterable[tuple[Ball, Stack, list[str]]]) -> None:
        """Reads the device. Layers whose step size was cut at 1 in most steps since the last look are named."""
        if self._said_clamped:
            return
        often, count = [], 0
        for _, stack, names in stacks:
            for name, (taken, _, cut) in zip(names, stack.figures.progress.tolist(), strict=True):
                before_taken, before_cut = self._before.get(name, (0.0, 0.0))
                self._before[name] = (taken, cut)
                count += 1
                if cut - before_cut > OFTEN * max(taken - before_taken, 1):
                    often.append(name)
        if often:
            self._said_clamped = True
            more = f" and {len(often) - 1} more of {count} layers" if len(often) > 1 else ""
            _warn(
                f"the step size was cut at 1 in most steps of {often[0]}{more}: weights are replaced and not trained; a smaller "
                "lr or a larger w may help, or constrain(..., steps=...), whose step sizes need neither"
            )


def _warn(text: str) -> None:
    warnings.warn(f"SFW: {text}", SFWWarning, stacklevel=4)
