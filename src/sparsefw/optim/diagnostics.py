"""What the constraint does to each layer, measured on request: nothing here runs inside a step."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor

from sparsefw.geometry import Ball, Spectrum
from sparsefw.optim.stacks import Stack
from sparsefw.optim.table import table


@dataclass(frozen=True)
class LayerReport:
    """One constrained block.

    gap             Frank-Wolfe gap at the current gradient (the momentum where there is none): 0 at a stationary point
    gradient_norm   L2 norm of that gradient
    momentum_norm   L2 norm of the momentum buffer
    step_size       eta of the last step: the share of the way to the vertex, and of the decay of everything else
    clamped         share of the steps in which eta was cut at 1
    norm            norm(theta) / radius: at most 1, up to rounding
    length          ||theta||_2 / radius
    quality         <vertex, m> / <best vertex, m> of the last step: 1 but for warm-started spectral oracles; NaN before a step
    certified       a lower bound on the quality that every step keeps without an SVD; loose where the spectrum is flat
    compressible    share of ||theta||_2 in the k magnitudes that the gauge would keep: 1 where the others are gone
    """

    name: str
    gap: float
    gradient_norm: float
    momentum_norm: float
    step_size: float
    clamped: float
    norm: float
    length: float
    quality: float
    certified: float
    compressible: float


class Quality(NamedTuple):
    """<vertex, m> per block: over its largest possible value, and over longest * ||m||, a bound on that which costs no SVD."""

    exact: list[float]
    certified: list[float]


class LayerReports(list[LayerReport]):
    """Printed, a table with a line per layer."""

    def __str__(self) -> str:
        columns = [field.name for field in fields(LayerReport)]
        rows = [[report.name, *(f"{getattr(report, column):.3g}" for column in columns[1:])] for report in self]
        return table([columns, *rows])


@torch.no_grad()
def report(stack: Stack, region: Ball, names: list[str], weights: list[list[Tensor]]) -> list[LayerReport]:
    """One LayerReport per block of the stack; reads the device."""
    results, quality = [], oracle_quality(stack, region)
    for i, (block, name) in enumerate(zip(stack.blocks, names, strict=True)):
        m = stack.momentum[i]
        theta = stack.layout.gather(weights[i], into=torch.empty_like(m))
        gradients = [p.grad for p in block if p.grad is not None]
        g = stack.layout.gather(gradients, into=torch.empty_like(m)) if len(gradients) == len(block) else m
        magnitudes = region.view.magnitudes(theta.unsqueeze(0))[0]
        kept = magnitudes[region.gauge.maximizer(magnitudes) != 0]
        results.append(
            LayerReport(
                name=name,
                gap=float(region.gap(theta, g)),
                gradient_norm=float(g.norm()),
                momentum_norm=float(m.norm()),
                step_size=float(stack.figures.eta[i]),
                clamped=float(stack.figures.clamped[i]) / max(int(stack.figures.steps[i]), 1),
                norm=float(region.norm(theta)) / region.radius,
                length=float(theta.norm()) / region.radius,
                quality=quality.exact[i],
                certified=quality.certified[i],
                compressible=float(kept.norm() / magnitudes.norm()) if bool(magnitudes.any()) else 1.0,
            )
        )
    return results


def oracle_quality(stack: Stack, region: Ball) -> Quality:
    """Of the last step's vertices, for every block of the stack; reads the device where there is something to find out."""
    view, count, size = region.view, region.count(stack.layout.shape), len(stack.blocks)
    if not isinstance(view, Spectrum) or not view.follows(region.gauge, count):
        return Quality([1.0] * size, [1.0] * size)
    m = stack.momentum.flatten(2).double()
    gram = m @ m.mT if m.shape[1] <= m.shape[2] else m.mT @ m
    singular_values = torch.linalg.eigvalsh(gram).clamp(min=0).sqrt()
    gained = stack.figures.gained.double()
    bound = region.gauge.longest(count) * singular_values.norm(dim=-1)
    return Quality((gained / region.gauge.dual_norm(singular_values)).tolist(), (gained / bound).tolist())
