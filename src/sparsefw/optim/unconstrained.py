"""The step of a group without a region: SGD or AdamW, as in torch.optim."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sparsefw.optim import kernels
from sparsefw.optim.master_weights import State, state_buffer, working_weight, write_back


def unconstrained_step(group: dict[str, Any], state_of: Callable[[Tensor], State], healthy: Tensor | None) -> None:
    """Step the tensors that have gradients. Those that take their first step are treated apart from the others."""
    alike: dict[tuple[bool, torch.device], list[Tensor]] = {}
    for p in group["params"]:
        if p.grad is not None:
            alike.setdefault((state_of(p).get("age", 0) == 0, p.device), []).append(p)
    update = _adamw if group["rest"] == "adamw" else _sgd
    for (first, device), params in alike.items():
        states = [state_of(p) for p in params]
        theta = [working_weight(p, state) for p, state in zip(params, states, strict=True)]
        healthy_here = None if healthy is None else healthy.to(device)
        gradients = [p.grad.to(weight.dtype) for p, weight in zip(params, theta, strict=True)]  # type: ignore[union-attr]
        update(group, states, theta, gradients, first, healthy_here)
        for state in states:
            state["age"] = 1
        write_back(params, states)


def _sgd(
    group: dict[str, Any],
    states: list[State],
    theta: list[Tensor],
    gradients: list[Tensor],
    first: bool,
    healthy: Tensor | None,
) -> None:
    rho = group["momentum"]
    m = [state_buffer(state, "momentum", weight) for state, weight in zip(states, theta, strict=True)] if rho else []
    decay, damp, nesterov = group["weight_decay"], group["dampening"], group["nesterov"]
    kernels.sgd_update(theta, gradients, m, group["lr"], rho, damp, decay, nesterov, first, healthy)


def _adamw(
    group: dict[str, Any],
    states: list[State],
    theta: list[Tensor],
    gradients: list[Tensor],
    first: bool,
    healthy: Tensor | None,
) -> None:
    mean = [state_buffer(state, "mean", weight) for state, weight in zip(states, theta, strict=True)]
    square = [state_buffer(state, "square", weight) for state, weight in zip(states, theta, strict=True)]
    # "step" is the one key that load_state_dict of the base class never casts: a bfloat16 counter would stop at 256.
    count = torch.zeros((), dtype=torch.float32, device=theta[0].device)
    steps = [state_buffer(state, "step", count) for state in states]
    betas, eps, decay = group["adam_betas"], group["adam_eps"], group["weight_decay"]
    kernels.adamw_update(
        theta, kernels.masked(gradients, healthy), mean, square, steps, group["lr"], betas, eps, decay, healthy
    )
