"""The updates as pure functions of tensors: no optimizer, no state dict, no host sync, no data-dependent branch.

Legend: a stack is b blocks of equal shape; m (b, *shape) is their momentum, theta[i][j] the j-th tensor of the i-th block
(several where channels are coupled), eta (b,) the step size of each block. `healthy` is a boolean scalar on the device: where it
is False, nothing changes. It is None where the host already knows that all gradients are finite.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sparsefw.geometry.gauges import Gauge
from sparsefw.geometry.views import maximizer_rows
from sparsefw.optim.rescale import Rescale, RuleInputs, step_size
from sparsefw.optim.stickiness import keep_best_scored

Tensors = list[Tensor]


class StepSetting(NamedTuple):
    """The numbers on which a step size depends.

    lr, rule           the learning rate, and how it becomes a step size
    radius, diameter   of the region; the diameter in the L2 norm
    batch              (b,) ||g|| of this batch
    taken              (b,) the steps taken before
    entries            how many weights a block has
    healthy            see the legend
    """

    lr: float | Tensor
    rule: Rescale
    radius: float
    diameter: float
    batch: Tensor
    taken: Tensor
    entries: int
    healthy: Tensor | None

    def step_size(self, momentum: Tensor, distance: Tensor) -> StepSize:
        """Return eta from ||m|| and ||v - theta||; 0 on an unhealthy step."""
        inputs = RuleInputs(momentum, self.batch, distance, self.diameter, self.taken, self.entries)
        eta, clamped = step_size(self.rule, self.lr, inputs)
        if self.healthy is None:
            return StepSize(eta, clamped)
        return StepSize(torch.where(self.healthy, eta, 0), clamped & self.healthy)


class StepSize(NamedTuple):
    """Per block (b,): the share eta of the way to the vertex, and whether the clamp at 1 cut it."""

    eta: Tensor
    clamped: Tensor


def masked(gradients: Tensors, healthy: Tensor | None) -> Tensors:
    """Return the gradients, or zeros on an unhealthy step (a product with 0 would keep a NaN).

    Dense gradients are copied end to end into one buffer: two launches for a network instead of one for each tensor. A compiler
    fuses by itself, and cannot trace such views.
    """
    if healthy is None:
        return gradients
    dense = [is_dense(g) and g.dtype == gradients[0].dtype for g in gradients]
    if torch.compiler.is_compiling() or not all(dense):
        return [torch.where(healthy, g, 0) for g in gradients]
    flat = torch.cat([g.as_strided((g.numel(),), (1,)) for g in gradients])
    pieces = torch.where(healthy, flat, 0).split([g.numel() for g in gradients])
    return [
        piece.as_strided(g.shape, g.stride(), piece.storage_offset())
        for piece, g in zip(pieces, gradients, strict=True)
    ]


def is_dense(g: Tensor) -> bool:
    """Whether the entries fill one stretch of memory, in any order of axes."""
    return g.is_contiguous() or (g.ndim == 4 and g.is_contiguous(memory_format=torch.channels_last))


def momentum_update(
    m: Tensors, gradients: Tensors, rho: float, dampening: float, first: bool, healthy: Tensor | None
) -> None:
    """m <- rho m + (1 - dampening) g; m <- g on the first step. The gradients must be masked already."""
    if first:
        torch._foreach_copy_(m, gradients)
    elif healthy is not None:
        if dampening:  # a buffer of zeros has not had a healthy step yet, which the host cannot know
            shares = [torch.where(buffer.any(), 1 - dampening, 1.0).to(buffer.dtype) for buffer in m]
            gradients = [g * share for g, share in zip(gradients, shares, strict=True)]
        torch._foreach_mul_(m, _if_healthy(rho, 1.0, healthy, m[0].dtype))
        torch._foreach_add_(m, gradients)
    else:
        for buffer, g in zip(m, gradients, strict=True):
            if dampening == 0 and buffer.dtype == g.dtype:
                torch.add(g, buffer, alpha=rho, out=buffer)  # one pass over memory instead of two
            else:
                buffer.mul_(rho).add_(g, alpha=1 - dampening)


def dense_update(
    theta: Sequence[Tensors], momentum_norm: Tensor, vertex: Tensor, parts: Sequence[Tensors], setting: StepSetting
) -> StepSize:
    """theta <- theta + eta (v - theta) with v = -radius * vertex.

    Args:
        theta: the weights of each block.
        momentum_norm: (b,) ||m||.
        vertex: (b, *shape), a vertex of the unit ball for each block; it is overwritten by v - theta.
        parts: aliases of `vertex`, one for each tensor of theta.
        setting: the numbers on which eta depends.
    """
    vertex.mul_(-setting.radius)
    for differences, weights in zip(parts, theta, strict=True):
        torch._foreach_sub_(differences, weights)
    distance = torch.linalg.vector_norm(vertex.flatten(1), dim=-1)
    step = setting.step_size(momentum_norm, distance)
    for differences, weights, eta in zip(parts, theta, step.eta.unbind(), strict=True):
        for difference, weight in zip(differences, weights, strict=True):
            weight.addcmul_(difference, eta)
    return step


def rows_update(
    theta: Sequence[Tensors],
    m: Sequence[Tensors],
    norms: Tensor,
    scores: Tensor | None,
    gauge: Gauge,
    setting: StepSetting,
) -> StepSize:
    """The same for views of rows, without building the vertex: it is a few rows of m, rescaled, and zero elsewhere.

    Args:
        theta: the weights of each block, as matrices (n, f).
        m: their momenta, as matrices (n, f).
        norms: (b, n), the row norms of m over all tensors of a block.
        scores: (b, n), the scores by which rows are chosen; None: by their norms.
        gauge: the gauge of the region.
        setting: the numbers on which eta depends.
    """
    eligible = norms if scores is None else keep_best_scored(norms, scores, gauge.support(norms.shape[-1]))
    rows, factors = maximizer_rows(gauge, eligible)
    scale = -setting.radius * factors
    picks = rows.unbind()
    old: list[Tensors] = []
    moves: list[Tensors] = []  # v - theta on the chosen rows; on the others it is -theta
    distances: Tensors = []
    for weights, buffers, chosen, scales in zip(theta, m, picks, scale.unsqueeze(-1).unbind(), strict=True):
        before = [weight.index_select(0, chosen) for weight in weights]
        towards = [
            buffer.index_select(0, chosen).mul_(scales).sub_(b) for buffer, b in zip(buffers, before, strict=True)
        ]
        still = [torch.linalg.vector_norm(weight, dim=-1).index_fill_(0, chosen, 0) for weight in weights]
        distances += [torch.linalg.vector_norm(part) for part in (*still, *towards)]
        old.append(before)
        moves.append(towards)
    distance = torch.linalg.vector_norm(torch.stack(distances).view(len(theta), -1), dim=-1)
    step = setting.step_size(torch.linalg.vector_norm(norms, dim=-1), distance)
    etas = step.eta.unbind()
    decays = (1 - step.eta).unbind()
    for weights, before, towards, chosen, eta, decay in zip(theta, old, moves, picks, etas, decays, strict=True):
        for weight, b, move in zip(weights, before, towards, strict=True):
            weight.mul_(decay).index_copy_(0, chosen, b.addcmul_(move, eta))
    return step


def sgd_update(
    theta: Tensors, gradients: Tensors, m: Tensors, *, lr: float | Tensor, rho: float, dampening: float, weight_decay: float,
    nesterov: bool, first: bool, healthy: Tensor | None,
) -> None:  # fmt: skip
    """theta <- theta - lr d, with d = m, or g + rho m with nesterov: the operations of torch's SGD in the same order.

    The gradients are masked here, together with the weight decay.
    """
    if weight_decay:
        gradients = list(torch._foreach_add(gradients, theta, alpha=weight_decay))
    gradients = masked(gradients, healthy)
    if rho:
        if first or healthy is not None:
            momentum_update(m, gradients, rho, dampening, first, healthy)
        else:  # momentum_update would round once where torch's SGD rounds twice
            torch._foreach_mul_(m, rho)
            torch._foreach_add_(m, gradients, alpha=1 - dampening)
        gradients = list(torch._foreach_add(gradients, m, alpha=rho)) if nesterov else m
    if healthy is None and not isinstance(lr, Tensor):
        torch._foreach_add_(theta, gradients, alpha=-lr)
    else:
        scale = -lr if healthy is None else _if_healthy(-lr, 0.0, healthy, theta[0].dtype)
        torch._foreach_add_(theta, torch._foreach_mul(gradients, scale))


def adamw_update(
    theta: Tensors, gradients: Tensors, mean: Tensors, square: Tensors, steps: Tensors, *, lr: float | Tensor,
    betas: tuple[float, float], eps: float, weight_decay: float, healthy: Tensor | None,
) -> None:  # fmt: skip
    """theta <- (1 - lr wd) theta - lr mean^ / (sqrt(square^) + eps), with ^ the bias-corrected averages (Loshchilov & Hutter)."""
    live = 1.0 if healthy is None else healthy.to(theta[0].dtype)
    for p, g, a, s, t in zip(theta, gradients, mean, square, steps, strict=True):
        t.add_(live)
        a.lerp_(g, (1 - betas[0]) * live)
        s.mul_(1 - (1 - betas[1]) * live).addcmul_(g, g, value=1 - betas[1])
        taken = t.double().clamp(min=1)  # a masked first step has taken none
        first, second = (-torch.expm1(taken * math.log(beta)) if beta else 1.0 for beta in betas)  # 1 - beta^t
        root = (s / second).sqrt_().add_(eps)
        p.mul_(1 - lr * weight_decay * live)
        p.sub_((a / first).div_(root).mul_(lr * live))


def _if_healthy(value: float | Tensor, otherwise: float, healthy: Tensor, dtype: torch.dtype) -> Tensor:
    live = healthy.to(dtype)
    return live * value + (1 - live) * otherwise
