"""Whether a step is fused: the plan for it, kept from step to step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sparsefw.optim import fused
from sparsefw.optim.master_weights import State
from sparsefw.optim.nonfinite import Health
from sparsefw.optim.stacks import Stack

if TYPE_CHECKING:
    from sparsefw.optim.fused.plan import Plan

# What a plan is made for; the numbers of a group, such as its learning rate, it reads anew every time.
_PLANNED = ("region", "rest", "rescale", "dampening", "score_momentum")


class Planner:
    """wanted: None where possible; True the same, but an error where there are no kernels; False never."""

    def __init__(self, wanted: bool | None) -> None:
        self._wanted = wanted
        self._plan: Plan | None = None
        self._made_for: tuple[list[Any], ...] = ()
        self._captured: list[Plan] = []

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
        momenta = [group["momentum"] for group in groups]
        made_for = (
            [(id(p), p.device, p.shape, p.stride()) for p in params],
            [id(stack) for some in stacks.values() for stack in some],
            [[id(group), *(group[key] for key in _PLANNED)] for group in groups],
            [
                (momenta.index(momentum), momentum == 0) for momentum in momenta
            ],  # which are alike, and which need no buffer
        )
        capturing = params[0].is_cuda and torch.cuda.is_current_stream_capturing()
        if self._plan is None or made_for != self._made_for or not self._plan.is_of(state_of):
            if capturing:
                raise RuntimeError(
                    "make a step with these gradients before one is captured: there is nothing to replay yet"
                )
            tally = health.tally(tuple(names), params[0].device)
            self._plan, self._made_for = plan_for(groups, stacks, params, state_of, tally), made_for
        if capturing and self._plan not in self._captured:
            self._captured.append(self._plan)  # a graph uses its memory as long as it lives
        return self._plan

    def _possible(self, device: torch.device) -> bool:
        if self._wanted is False or torch.compiler.is_compiling() or (self._wanted is None and device.type != "cuda"):
            return False
        possible = fused.available(device)
        if self._wanted and not possible:
            raise ValueError(f"fused=True needs Triton and an NVIDIA GPU since Ampere; the parameters are on {device}")
        return possible
