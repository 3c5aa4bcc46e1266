"""Whether a step is fused: the plan for it, kept from step to step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sparsefw.optim import fused
from sparsefw.optim.health import Health
from sparsefw.optim.stacks import Stack
from sparsefw.optim.weights import State

if TYPE_CHECKING:
    from sparsefw.optim.fused.plan import Plan

# What a plan is made for; learning rates it reads anew every time.
_PLANNED = ("region", "rest", "rescale", "momentum", "dampening", "weight_decay", "nesterov")


class Planner:
    """wanted: None where possible, True always, False never."""

    def __init__(self, wanted: bool | None) -> None:
        self._wanted = wanted
        self._plan: Plan | None = None
        self._made_for: tuple[list[Any], ...] = ()

    def plan(
        self,
        groups: Sequence[dict[str, Any]],
        stacks_of: Callable[[int], list[Stack]],
        params: list[Tensor],
        names: list[str],
        state_of: Callable[[Tensor], State],
        health: Health,
    ) -> Plan | None:
        """The fused step of these tensors, made anew where anything but learning rates has changed; None for the plain step."""
        if not self._possible(params[0].device):
            return None
        from sparsefw.optim.fused.plan import plan_for, suits

        if not suits(params):
            return None
        stacks = {index: stacks_of(index) for index, group in enumerate(groups) if group["region"] is not None}
        made_for = (
            list(map(id, params)),
            [id(stack) for some in stacks.values() for stack in some],
            [[group[key] for key in _PLANNED] for group in groups],
        )
        if self._plan is None or made_for != self._made_for:
            tally = health.tally(tuple(names), params[0].device)
            self._plan, self._made_for = plan_for(groups, stacks, params, state_of, tally), made_for
        return self._plan

    def _possible(self, device: torch.device) -> bool:
        if self._wanted is False or torch.compiler.is_compiling() or (self._wanted is None and device.type != "cuda"):
            return False
        if self._wanted and not fused.available(device):
            raise ValueError(f"fused=True needs Triton and an NVIDIA GPU since Ampere; the parameters are on {device}")
        return fused.available(device)
