"""Stochastic Frank-Wolfe as the paper states it: the reference, for reading and for testing the fast one.

One parameter at a time, with exact oracles. `sparsefw.SFW` computes the same function on stacks of layers; a test compares the
two on every region and rule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sparsefw.geometry import Ball
from sparsefw.optim.rescale import Gradient, Rescale, RuleInputs, step_size


def sfw_reference(
    theta: Tensor,
    g: Tensor,
    m: Tensor | None,
    region: Ball,
    lr: float,
    momentum: float,
    dampening: float,
    rule: Rescale,
    taken: int,
) -> Tensor:
    """theta <- (1 - eta) theta + eta v in place, with v = argmin_{u in region} <u, m>; returns the new momentum m.

    `taken` is the number of steps before this one.
    """
    m = g.clone() if m is None else momentum * m + (1 - dampening) * g
    v = region.lmo(m)
    before = torch.full((1,), float(taken), dtype=torch.float64)
    diameter = region.diameter(theta.shape)
    inputs = RuleInputs(m.norm()[None], g.norm()[None], (v - theta).norm()[None], diameter, before, theta.numel())
    eta, _ = step_size(rule, lr, inputs)
    theta.lerp_(v, eta[0])
    return m


def sgd_reference(
    theta: Tensor, g: Tensor, m: Tensor | None, lr: float, momentum: float, weight_decay: float
) -> Tensor:
    """theta <- theta - lr m in place, for a parameter without a region; returns the new momentum m."""
    g = g + weight_decay * theta
    m = g.clone() if m is None else momentum * m + g
    theta.sub_(lr * m)
    return m


class ReferenceSFW(torch.optim.Optimizer):
    """Takes the param groups of SFW: those with a region take Frank-Wolfe steps, the others SGD steps."""

    def __init__(
        self,
        params: Any,
        lr: float = 0.1,
        momentum: float = 0.9,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        rescale: Rescale = Gradient(),
    ) -> None:
        defaults = dict(
            lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay, rescale=rescale, region=None
        )
        super().__init__(params, defaults)
        for group in self.param_groups:
            group["rescale"] = group["rescale"].starting_at(group["lr"])

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                m = state.get("momentum")
                lr = group["lr"]
                rho = group["momentum"]
                if group["region"] is None:
                    state["momentum"] = sgd_reference(p, p.grad, m, lr, rho, group["weight_decay"])
                else:
                    rule = group["rescale"]
                    taken = state.get("taken", 0)
                    state["momentum"] = sfw_reference(
                        p, p.grad, m, group["region"], lr, rho, group["dampening"], rule, taken
                    )
                    state["taken"] = taken + 1
        return loss
