"""The step of a group without a region: SGD or AdamW, as in torch.optim."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from sparsefw.optim import kernels
from sparsefw.optim.groups import ADAMW, Group
from sparsefw.optim.master_weights import State, state_buffer, working_weight, write_back


class _Batch(NamedTuple):
    """Tensors that are stepped together: on one device, and all in their first step or none.

    states      the state of each
    theta       the weights, or their float32 copies
    gradients   in the dtype of theta
    first       whether this is their first step
    healthy     as in kernels.py, on the device of the tensors
    """

    states: list[State]
    theta: list[Tensor]
    gradients: list[Tensor]
    first: bool
    healthy: Tensor | None

    def buffers(self, key: str) -> list[Tensor]:
        """Return a tensor like each weight from its state."""
        return [state_buffer(state, key, weight) for state, weight in zip(self.states, self.theta, strict=True)]


def unconstrained_step(group: Group, state_of: Callable[[Tensor], State], healthy: Tensor | None) -> None:
    """Step the tensors that have gradients. Those that take their first step are treated apart from the others."""
    alike: dict[tuple[bool, torch.device], list[Tensor]] = {}
    for p in group["params"]:
        if p.grad is not None:
            alike.setdefault((state_of(p).get("age", 0) == 0, p.device), []).append(p)
    update = _adamw if group["rest"] == ADAMW else _sgd
    for (first, device), params in alike.items():
        states = [state_of(p) for p in params]
        theta = [working_weight(p, state) for p, state in zip(params, states, strict=True)]
        gradients = [p.grad.to(weight.dtype) for p, weight in zip(params, theta, strict=True)]  # type: ignore[union-attr]
        update(group, _Batch(states, theta, gradients, first, None if healthy is None else healthy.to(device)))
        for state in states:
            state["age"] = 1
        write_back(params, states)


def _sgd(group: Group, batch: _Batch) -> None:
    kernels.sgd_update(
        batch.theta,
        batch.gradients,
        batch.buffers("momentum") if group["momentum"] else [],
        lr=group["lr"],
        rho=group["momentum"],
        dampening=group["dampening"],
        weight_decay=group["weight_decay"],
        nesterov=group["nesterov"],
        first=batch.first,
        healthy=batch.healthy,
    )


def _adamw(group: Group, batch: _Batch) -> None:
    # "step" is the one key that load_state_dict of the base class never casts: a bfloat16 counter would stop at 256.
    count = torch.zeros((), dtype=torch.float32, device=batch.theta[0].device)
    kernels.adamw_update(
        batch.theta,
        kernels.masked(batch.gradients, batch.healthy),
        batch.buffers("mean"),
        batch.buffers("square"),
        [state_buffer(state, "step", count) for state in batch.states],
        lr=group["lr"],
        betas=group["adam_betas"],
        eps=group["adam_eps"],
        weight_decay=group["weight_decay"],
        healthy=batch.healthy,
    )
