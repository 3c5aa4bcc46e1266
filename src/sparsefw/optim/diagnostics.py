"""What the constraint does to each layer, measured on request: nothing here runs inside a step."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

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


class LayerReports(list[LayerReport]):
    """Printed, a table with a line per layer."""

    def __str__(self) -> str:
        columns = [field.name for field in fields(LayerReport)]
        rows = [[report.name, *(f"{getattr(report, column):.3g}" for column in columns[1:])] for report in self]
        return table([columns, *rows])


@torch.no_grad()
def report(stack: Stack, region: Ball, names: list[str], weights: list[list[Tensor]]) -> list[LayerReport]:
    """One LayerReport per block of the stack; reads the device."""
    results = []
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
                **_quality(stack, region, i),
                compressible=float(kept.norm() / magnitudes.norm()) if bool(magnitudes.any()) else 1.0,
            )
        )
    return results


def _quality(stack: Stack, region: Ball, i: int) -> dict[str, float]:
    """Of the last step's vertex, against the true dual norm, and against its bound longest * ||m||, which costs no SVD."""
    view, count = region.view, region.count(stack.layout.shape)
    if not isinstance(view, Spectrum) or not view.follows(region.gauge, count):
        return {"quality": 1.0, "certified": 1.0}
    m, gained = stack.momentum[i], float(stack.figures.gained[i])
    best, bound = float(region.dual_norm(m)), region.gauge.longest(count) * float(m.norm())
    return {"quality": gained / best if best else math.nan, "certified": gained / bound if bound else math.nan}
