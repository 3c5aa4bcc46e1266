"""Feasible regions: a view times a gauge times a radius.

    { x : gauge.norm(view(x)) <= radius }

This file is the "what set" half of the paper; optim/reference.py is the "what step" half. There is one class, `Ball`; the
named regions below are its useful pairs, and their docstrings state the set and its vertices.

Conventions: an oracle MINIMISES, ``lmo(g) in argmin_{x in region} <x, g>``, and returns the vertex itself; the vertex has
exactly k nonzero magnitudes (fewer only where the gradient has fewer), whatever the ties; ``lmo(0) = 0``. Every method
takes one tensor, or with ``stacked=True`` a stack of tensors along a leading axis, each of which is one point.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sparsefw.geometry import views
from sparsefw.geometry.gauges import NM, Gauge, KSparse, KSupport, Lp
from sparsefw.geometry.precision import working_dtype
from sparsefw.geometry.projections import onto_simplex
from sparsefw.geometry.views import Elements, ExactSVD, Groups, Partition, Spectrum, View, WarmSubspace


@dataclass(frozen=True, repr=False)
class Ball:
    """{ x : gauge.norm(view(x)) <= radius }: convex, compact, symmetric about 0."""

    view: View
    gauge: Gauge
    radius: float = 1.0

    def __post_init__(self) -> None:
        if not (isinstance(self.radius, (int, float)) and 0 < self.radius < math.inf):
            raise ValueError(f"the radius of a region must be a positive, finite number, got {self.radius!r}")
        if isinstance(self.gauge, NM) != (isinstance(self.view, Elements) and self.view.block > 1):
            raise ValueError(
                f"N:M needs entries in blocks along an axis, and only N:M does: use NMBall (got {self.gauge} of {self.view})"
            )

    def lmo(self, g: Tensor, *, stacked: bool = False) -> Tensor:
        """argmin <x, g> over the region: a vertex, exactly optimal (spectral regions by a full SVD)."""
        x, _ = self._scaled(g, stacked)
        magnitudes, lift = self.view.split(x)
        return self._result(-self.radius * lift(self.gauge.maximizer(magnitudes)), g, stacked)

    def norm(self, x: Tensor, *, stacked: bool = False) -> Tensor:
        """The gauge of the magnitudes: x is in the region where norm(x) <= radius."""
        return self._measure(self.gauge.norm, x, stacked)

    def dual_norm(self, g: Tensor, *, stacked: bool = False) -> Tensor:
        """max <x, g> over norm(x) <= 1; so <lmo(g), g> = -radius * dual_norm(g)."""
        return self._measure(self.gauge.dual_norm, g, stacked)

    def gap(self, x: Tensor, g: Tensor, *, stacked: bool = False) -> Tensor:
        """The Frank-Wolfe gap max <x - u, g> over u in the region: 0 exactly at stationary points."""
        both = x.double() * g.double()
        inner = both.flatten(1).sum(-1) if stacked else both.sum()
        return inner.to(working_dtype(g.dtype)) + self.radius * self.dual_norm(g, stacked=stacked)

    def project(self, x: Tensor, *, stacked: bool = False) -> Tensor:
        """argmin ||y - x|| over y in the region."""
        magnitudes, lift = self.view.split(self._stack(x, stacked).double())
        radius = magnitudes.new_full((magnitudes.shape[0], 1), self.radius)
        inside = self.gauge.norm(magnitudes) <= self.radius
        projected = lift(self.gauge.project(magnitudes, radius))
        # Where x is 1e12 times too long the multiplier cannot be resolved any more: feasible all the same.
        projected = self._result(self.pull_inside(projected, stacked=True), x, stacked)
        # What is inside is returned as it is, not as rounded by the way through the magnitudes.
        return torch.where(_per_block(inside, x), x, projected)

    def pull_inside(self, x: Tensor, *, stacked: bool = False) -> Tensor:
        """x where it is in the region, else x * radius / norm(x): the cheap way in, which keeps the direction."""
        norm = self.norm(x, stacked=stacked)
        # Entries are rounded once more on the way back to half precision: half a unit each, and never outwards.
        margin = 1 - torch.finfo(x.dtype).eps if norm.dtype != x.dtype else 1.0
        factor = torch.where(norm > self.radius, self.radius / norm * margin, 1)
        return (x * _per_block(factor, x)).to(x.dtype)

    def contains(self, x: Tensor, *, stacked: bool = False, tolerance: float = 1e-5) -> Tensor:
        """Whether norm(x) <= radius, up to a relative tolerance for rounding; a boolean tensor."""
        return self.norm(x, stacked=stacked) <= self.radius * (1 + tolerance)

    def diameter(self, shape: Sequence[int]) -> float:
        """max ||x - y||_2 over the region, for tensors of this shape."""
        return 2 * self.radius * self.gauge.longest(self.count(shape))

    def with_diameter(self, diameter: float, shape: Sequence[int]) -> Ball:
        """The same ball with the radius at which its L2 diameter is `diameter`."""
        return replace(self, radius=diameter / (2 * self.gauge.longest(self.count(shape))))

    def with_radius(self, radius: float) -> Ball:
        return replace(self, radius=radius)

    def count(self, shape: Sequence[int]) -> int:
        """How many magnitudes a tensor of this shape has; ValueError where the region is not defined on it."""
        try:
            if len(shape) == 0:
                raise ValueError("a scalar has no magnitudes to choose from")
            count = self.view.count(shape)
            self.gauge.check(count)
        except ValueError as error:
            raise ValueError(f"{self} on a tensor of shape {tuple(shape)}: {error}") from None
        return count

    def oracle(self, stack: Tensor, warm: Tensor | None = None, iterations: int = 1) -> tuple[Tensor, Tensor | None]:
        """The oracle as training calls it: (vertices of the UNIT ball that maximise <u, stack>, warm start for next time).

        Times -radius it is the LMO. It never syncs with the host and can be captured in a CUDA graph. Spectral regions
        follow the leading subspace from `warm` instead of an SVD; for them the vertex is feasible but only nearly best.
        In float32 a gradient whose norm is below 1e-17 counts as zero (`lmo` rescales first and has no such floor).
        Half precisions are computed in float32, which the warm start keeps.
        """
        vertices, warm = self.view.oracle(self.gauge, stack.to(working_dtype(stack.dtype)), warm, iterations)
        return vertices.to(stack.dtype), warm

    def plain(self) -> dict[str, Any]:
        """As nested dictionaries of plain values; `from_plain` is the way back."""
        return {"view": views.plain(self.view), "gauge": views.plain(self.gauge), "radius": self.radius}

    @staticmethod
    def from_plain(values: dict[str, Any]) -> Ball:
        return Ball(_rebuild(values["view"]), _rebuild(values["gauge"]), float(values["radius"]))

    @property
    def name(self) -> str:
        """The constructor's name where this pair of view and gauge has one."""
        kind = (
            type(self.view).__name__,
            f"L{self.gauge.p:g}" if isinstance(self.gauge, Lp) else type(self.gauge).__name__,
        )
        return _NAMES.get(kind) or _NAMES.get((kind[0], "Lp")) or " of ".join(reversed(kind))

    def __str__(self) -> str:
        details = ", ".join(f"{key}={value:g}" for key, value in vars(self.gauge).items())
        if isinstance(self.view, Groups) and not self.view.rows:
            details += f", {self.view.partition or f'axis={self.view.axis}'}"
        return f"{self.name}({details}{', ' if details else ''}radius={self.radius:.4g})"

    __repr__ = __str__

    def _measure(self, gauge: Callable[[Tensor], Tensor], x: Tensor, stacked: bool) -> Tensor:
        scaled, scale = self._scaled(x, stacked)
        value = gauge(self.view.magnitudes(scaled)) * scale
        return value if stacked else value[0]

    def _scaled(self, x: Tensor, stacked: bool) -> tuple[Tensor, Tensor]:
        """The stack divided by the largest entry of each block: squares of 1e-30 or 1e30 then neither vanish nor overflow."""
        stack = self._stack(x, stacked)
        scale = stack.flatten(1).abs().amax(-1)
        safe = torch.where(scale == 0, 1, scale)
        return stack / _per_block(safe, stack), scale

    def _stack(self, x: Tensor, stacked: bool) -> Tensor:
        stack = x if stacked else x.unsqueeze(0)
        self.count(stack.shape[1:])
        return stack.to(working_dtype(x.dtype))

    @staticmethod
    def _result(stack: Tensor, like: Tensor, stacked: bool) -> Tensor:
        return (stack if stacked else stack[0]).to(like.dtype)


@dataclass(frozen=True)
class Simplex:
    """{ x >= 0 : sum(x) = radius }: not a ball, so it has a linear oracle, a projection and a membership test only."""

    radius: float = 1.0

    def lmo(self, g: Tensor) -> Tensor:
        """radius * e_j with j = argmin g, exactly one nonzero entry also where all entries are equal."""
        vertex = torch.zeros_like(g).flatten()
        vertex.scatter_(0, g.flatten().argmin().unsqueeze(0), self.radius)
        return vertex.view(g.shape)

    def project(self, x: Tensor) -> Tensor:
        flat = x.double().flatten()
        return onto_simplex(flat, flat.new_tensor([self.radius])).view(x.shape).to(x.dtype)

    def contains(self, x: Tensor, *, tolerance: float = 1e-5) -> Tensor:
        slack = tolerance * self.radius
        return (x >= -slack).all() & ((x.double().sum() - self.radius).abs() <= slack)


def LpBall(p: float, radius: float = 1.0) -> Ball:
    """{ x : ||x||_p <= radius }, 1 <= p <= inf. Vertices: p = 1 signed unit vectors, p = 2 all directions, p = inf all signs."""
    return Ball(Elements(), Lp(p), radius)


def KSparsePolytope(k: int, radius: float = 1.0) -> Ball:
    """conv{ x in {0, +-radius}^n : at most k nonzeros }: k weights move, all by the same amount."""
    return Ball(Elements(), KSparse(k), radius)


def KSupportBall(k: int, radius: float = 1.0) -> Ball:
    """conv{ x : at most k nonzeros, ||x||_2 <= radius }: k weights move, in proportion to their gradient."""
    return Ball(Elements(), KSupport(k), radius)


def NMBall(n: int, m: int, radius: float = 1.0, axis: int = 1) -> Ball:
    """conv{ x : at most n nonzeros in every block of m entries along the axis (1: input channels), ||x||_2 <= radius }."""
    return Ball(Elements(axis, m), NM(n, m), radius)


def GroupKSupportBall(
    k: int, radius: float = 1.0, *, axis: int = 0, labels: Tensor | Sequence[int] | None = None
) -> Ball:
    """conv{ x : at most k nonzero groups, ||x||_2 <= radius }: k filters move. Groups: slices along an axis, or labelled."""
    return Ball(_groups(axis, labels), KSupport(k), radius)


def GroupLassoBall(radius: float = 1.0, *, axis: int = 0, labels: Tensor | Sequence[int] | None = None) -> Ball:
    """{ x : sum of the group norms <= radius } = conv{ x : one nonzero group, ||x||_2 <= radius }."""
    return Ball(_groups(axis, labels), Lp(1), radius)


def SpectralKSupportBall(k: int, radius: float = 1.0, solver: ExactSVD | WarmSubspace = WarmSubspace()) -> Ball:
    """conv{ X : rank(X) <= k, ||X||_F <= radius }: the vertex is the k-SVD of the gradient, rescaled."""
    return Ball(Spectrum(solver), KSupport(k), radius)


def SpectralKSparse(k: int, radius: float = 1.0, solver: ExactSVD | WarmSubspace = WarmSubspace()) -> Ball:
    """conv{ X : rank(X) <= k, ||X||_2 <= radius } (dual of the Ky Fan k-norm): k directions move, all by the same amount."""
    return Ball(Spectrum(solver), KSparse(k), radius)


def NuclearBall(radius: float = 1.0, solver: ExactSVD | WarmSubspace = WarmSubspace()) -> Ball:
    """{ X : sum of the singular values <= radius } = conv{ X : rank(X) = 1, ||X||_F <= radius }."""
    return Ball(Spectrum(solver), Lp(1), radius)


def SpectralBall(radius: float = 1.0, solver: ExactSVD | WarmSubspace = WarmSubspace()) -> Ball:
    """{ X : largest singular value <= radius }: the vertex is the polar factor of the gradient, as in Muon."""
    return Ball(Spectrum(solver), Lp(math.inf), radius)


REGIONS: dict[str, Callable[..., Ball] | type[Simplex]] = {
    constructor.__name__: constructor
    for constructor in (
        LpBall, KSparsePolytope, KSupportBall, NMBall, GroupKSupportBall, GroupLassoBall,
        SpectralKSupportBall, SpectralKSparse, NuclearBall, SpectralBall, Simplex,
    )
}  # fmt: skip

_PARTS = {
    cls.__name__: cls
    for cls in (Elements, Groups, Spectrum, Partition, ExactSVD, WarmSubspace, Lp, KSparse, KSupport, NM)
}


_NAMES = {
    ("Elements", "Lp"): "LpBall", ("Elements", "KSparse"): "KSparsePolytope", ("Elements", "KSupport"): "KSupportBall",
    ("Elements", "NM"): "NMBall", ("Groups", "KSupport"): "GroupKSupportBall", ("Groups", "L1"): "GroupLassoBall",
    ("Spectrum", "KSupport"): "SpectralKSupportBall", ("Spectrum", "KSparse"): "SpectralKSparse",
    ("Spectrum", "L1"): "NuclearBall", ("Spectrum", "Linf"): "SpectralBall",
}  # fmt: skip


def _groups(axis: int, labels: Tensor | Sequence[int] | None) -> Groups:
    if labels is None:
        return Groups(axis)
    if axis != 0:
        raise ValueError(f"groups are given by an axis or by labels, not by both (axis={axis})")
    return Groups(partition=Partition(labels))


def _rebuild(values: Any) -> Any:
    if not isinstance(values, dict):
        return values
    name = values.get("type")
    if name not in _PARTS:
        raise ValueError(f"unknown part of a region: {name!r}; known are {', '.join(sorted(_PARTS))}")
    return _PARTS[name](**{key: _rebuild(value) for key, value in values.items() if key != "type"})


def _per_block(values: Tensor, x: Tensor) -> Tensor:
    """One value per block (b,), or a single one, in the shape that broadcasts against x."""
    return values.view([-1] + [1] * (x.ndim - 1))


__all__ = ["REGIONS", "Ball", "Simplex", *(name for name in REGIONS if name != "Simplex")]
