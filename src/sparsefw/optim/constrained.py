"""The Frank-Wolfe step of consecutive blocks of a stack."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from sparsefw.optim import kernels
from sparsefw.optim.groups import Group
from sparsefw.optim.master_weights import working_weight, write_back
from sparsefw.optim.stacks import StackSlice, block_gradient_norms
from sparsefw.optim.stickiness import update_scores


def constrained_step(group: Group, part: StackSlice, norms: Mapping[Tensor, Tensor], healthy: Tensor | None) -> None:
    """Update momenta, choose vertices, and move the weights towards them.

    Args:
        group: the param group.
        part: the blocks.
        norms: the norm of each parameter's gradient.
        healthy: whether all gradients are finite, on the device; None where the host knows that they are.
    """
    stack = part.stack
    span = part.span
    region = group["region"]
    blocks = stack.blocks[span]
    momentum = stack.momentum[span]
    params = [p for block in blocks for p in block]
    states = [state for block in stack.states[span] for state in block]
    theta = [
        [working_weight(p, state) for p, state in zip(block, block_states, strict=True)]
        for block, block_states in zip(blocks, stack.states[span], strict=True)
    ]
    healthy = None if healthy is None else healthy.to(momentum.device)
    gradients = kernels.masked([p.grad for p in params], healthy)  # type: ignore[misc]
    buffers = [buffer for block in stack.buffers[span] for buffer in block]
    kernels.momentum_update(buffers, gradients, group["momentum"], group["dampening"], part.is_first_step, healthy)
    setting = kernels.StepSetting(
        lr=group["lr"],
        rule=group["rescale"],
        radius=region.radius,
        diameter=region.diameter(stack.layout.shape),
        batch=block_gradient_norms(norms, blocks).to(momentum.dtype),
        taken=stack.figures.taken[span],
        entries=math.prod(stack.layout.shape),
        healthy=healthy,
    )
    if stack.by_rows:
        step = _step_rows(group, part, theta, setting)
    elif group["score_momentum"]:
        raise ValueError(
            f"score_momentum needs rows that are contiguous in memory: those of {stack.layout.shape} are not"
        )
    else:
        momentum_norm = torch.linalg.vector_norm(momentum.flatten(1), dim=-1)
        vertex = part.vertex(region, healthy)
        parts = [stack.layout.views(v) for v in vertex.unbind()]
        step = kernels.dense_update(theta, momentum_norm, vertex, parts, setting)
    part.record(step.eta, step.clamped, healthy)
    write_back(params, states)


def _step_rows(
    group: Group, part: StackSlice, theta: list[list[Tensor]], setting: kernels.StepSetting
) -> kernels.StepSize:
    stack = part.stack
    span = part.span
    region = group["region"]
    norms = region.view.magnitudes(stack.momentum[span])
    scores = None
    if group["score_momentum"]:
        first_states = [block[0] for block in stack.states[span]]
        scores = update_scores(first_states, norms, group["score_momentum"], setting.healthy)
    rows = [stack.layout.rows(block) for block in theta]
    return kernels.rows_update(rows, stack.row_buffers[span], norms, scores, region.gauge, setting)
