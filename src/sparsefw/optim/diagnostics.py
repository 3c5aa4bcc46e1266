"""Diagnostics: the effect of the constraint on each layer, measured on request and never inside a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor

from sparsefw.geometry import Ball, Spectrum
from sparsefw.geometry.matrices import matrices_of
from sparsefw.geometry.subspace import gram_values
from sparsefw.optim.stacks import Stack, StepTotals
from sparsefw.text import text_table

DECAYED = 0.05  # of the layer's largest magnitude: magnitudes below count as decayed


@dataclass(frozen=True)
class ConstraintProgress:
    """The effect of the constraint so far, averaged over constrained layers by their size.

    renewed        the sum of the step sizes: exp(-renewed) of the weights at the start is left
    decayed        share of the filters, directions or weights below 5 % of the largest of their layer
    compressible   share of a weight's L2 norm in the k magnitudes that its gauge would keep: 1 where all others are 0
    clamped        share of the steps in which the step size was cut at 1
    """

    renewed: float
    decayed: float
    compressible: float
    clamped: float

    def __str__(self) -> str:
        cut = f", step size cut at 1 in {self.clamped:.0%} of the steps" if self.clamped else ""
        return (
            f"all layers: renewed {self.renewed:.2f} times, {self.decayed:.0%} decayed, "
            f"{self.compressible:.0%} of the norm in the units that would be kept{cut}"
        )


@dataclass(frozen=True)
class LayerReport:
    """One constrained block.

    name            of its parameters
    gap             Frank-Wolfe gap at the current gradient (the momentum where there is none): 0 at a stationary point
    gradient_norm   L2 norm of that gradient
    momentum_norm   L2 norm of the momentum buffer
    step_size       eta of the last step: the share of the way to the vertex, and of the decay of everything else
    clamped         share of the steps in which eta was cut at 1
    renewed         the sum of all step sizes so far: exp(-renewed) of the weights at the start is left
    decayed         share of the magnitudes below 5 % of the largest
    norm            norm(theta) / radius: at most 1, up to rounding
    length          ||theta||_2 / radius
    quality         <vertex, m> / <best vertex, m> of the last step: 1 but for warm-started spectral oracles; NaN before a step
    certified       a lower bound on the quality that needs no SVD; loose where the spectrum is flat
    compressible    share of ||theta||_2 in the k magnitudes that the gauge would keep: 1 where all others are 0
    entries         the number of weights
    """

    name: str
    gap: float
    gradient_norm: float
    momentum_norm: float
    step_size: float
    clamped: float
    renewed: float
    decayed: float
    norm: float
    length: float
    quality: float
    certified: float
    compressible: float
    entries: int


class OracleQuality(NamedTuple):
    """<vertex, m> of each block, relative to its largest possible value.

    exact       divided by that value
    certified   divided by longest * ||m||, an upper bound of that value that needs no SVD
    """

    exact: list[float]
    certified: list[float]


class LayerReports(list[LayerReport]):
    """A report for each constrained block; printed, a table with a line per block and one for the whole network."""

    @property
    def total(self) -> ConstraintProgress:
        """The progress of the whole network."""
        return mean_progress(
            [(r.entries, ConstraintProgress(r.renewed, r.decayed, r.compressible, r.clamped)) for r in self]
        )

    def __str__(self) -> str:
        columns = [field.name for field in fields(LayerReport)]
        rows = [[report.name, *(_cell(getattr(report, column)) for column in columns[1:])] for report in self]
        total = [str(self.total)] if self else []
        return "\n".join([text_table([columns, *rows]), *total])


def _cell(value: float | int) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def mean_progress(parts: Sequence[tuple[int, ConstraintProgress]]) -> ConstraintProgress:
    """Return the mean over blocks, weighted by their number of entries, from (entries, progress) of each."""
    whole = max(sum(entries for entries, _ in parts), 1)
    means = (
        sum(entries * getattr(part, field.name) for entries, part in parts) / whole
        for field in fields(ConstraintProgress)
    )
    return ConstraintProgress(*means)


@torch.no_grad()
def progress_of_blocks(stack: Stack, region: Ball, weights: list[list[Tensor]]) -> list[tuple[int, ConstraintProgress]]:
    """Return (entries, progress) of every block of the stack, at less cost than a report; reads the device."""
    parts = []
    for i, tensors in enumerate(weights):
        theta = stack.layout.gather(tensors, into=torch.empty_like(stack.momentum[i]))
        parts.append((theta.numel(), _progress(stack, i, region, _magnitudes(region, theta))))
    return parts


def _progress(stack: Stack, i: int, region: Ball, magnitudes: Tensor) -> ConstraintProgress:
    totals = StepTotals(*stack.figures.progress[i].tolist())
    largest = magnitudes.max()
    kept = magnitudes[region.gauge.maximizer(magnitudes) != 0]
    return ConstraintProgress(
        renewed=totals.renewed,
        decayed=float((magnitudes <= DECAYED * largest).double().mean()) if bool(largest > 0) else 1.0,
        compressible=float(kept.norm() / magnitudes.norm()) if bool(largest > 0) else 1.0,
        clamped=totals.clamped / max(totals.taken, 1.0),
    )


def _magnitudes(region: Ball, theta: Tensor) -> Tensor:
    """Return the magnitudes; singular values fast by the Gram matrix, to 1e-8 of the largest, which is exact enough here."""
    if isinstance(region.view, Spectrum):
        return gram_values(matrices_of(theta.unsqueeze(0)))[0]
    return region.view.magnitudes(theta.unsqueeze(0))[0]


@torch.no_grad()
def report_blocks(stack: Stack, region: Ball, names: list[str], weights: list[list[Tensor]]) -> list[LayerReport]:
    """Return one report per block of the stack; reads the device."""
    reports = []
    quality = oracle_quality(stack, region)
    for i, (block, name) in enumerate(zip(stack.blocks, names, strict=True)):
        m = stack.momentum[i]
        theta = stack.layout.gather(weights[i], into=torch.empty_like(m))
        gradients = [p.grad for p in block if p.grad is not None]
        g = stack.layout.gather(gradients, into=torch.empty_like(m)) if len(gradients) == len(block) else m
        state = _progress(stack, i, region, region.view.magnitudes(theta.unsqueeze(0))[0])
        reports.append(
            LayerReport(
                name=name,
                gap=float(region.gap(theta, g)),
                gradient_norm=float(g.norm()),
                momentum_norm=float(m.norm()),
                step_size=float(stack.figures.eta[i]),
                clamped=state.clamped,
                renewed=state.renewed,
                decayed=state.decayed,
                norm=float(region.norm(theta)) / region.radius,
                length=float(theta.norm()) / region.radius,
                quality=quality.exact[i],
                certified=quality.certified[i],
                compressible=state.compressible,
                entries=theta.numel(),
            )
        )
    return reports


def oracle_quality(stack: Stack, region: Ball) -> OracleQuality:
    """Return the quality of the last step's vertices, for every block; reads the device where oracles are not exact."""
    view = region.view
    count = region.count(stack.layout.shape)
    if not isinstance(view, Spectrum) or not view.follows(region.gauge, count):
        ones = [1.0] * len(stack.blocks)
        return OracleQuality(ones, ones)
    values = gram_values(matrices_of(stack.momentum))
    gained = stack.figures.gained.double()
    largest = region.gauge.dual_norm(values)
    bound = region.gauge.longest(count) * values.norm(dim=-1)
    return OracleQuality((gained / largest).tolist(), (gained / bound).tolist())
