"""Feasible regions: a view times a gauge times a radius.

    { x : gauge.norm(view(x)) <= radius }

There is one class, `Ball`. The named regions below are its useful pairs of view and gauge; their docstrings state the set and its
vertices. This file states the sets of the paper, optim/reference.py its step.

Conventions: an oracle MINIMISES, ``lmo(g) in argmin_{x in region} <x, g>``, and returns the vertex itself. The vertex has
exactly k nonzero magnitudes, whatever the ties, and fewer only where the gradient has fewer; ``lmo(0) = 0``. Every method takes
one tensor, or with ``stacked=True`` a stack of tensors along a leading axis, each of which is one point.
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
    """{ x : gauge.norm(view(x)) <= radius }: convex, compact, symmetric about 0.

    view     what counts as one magnitude of x
    gauge    the norm of the magnitudes
    radius   a positive, finite number

    >>> region = KSupportBall(k=1, radius=2.0)
    >>> region.lmo(torch.tensor([3.0, -4.0]))
    tensor([-0., 2.])
    >>> region.norm(torch.tensor([3.0, -4.0])), region.dual_norm(torch.tensor([3.0, -4.0]))
    (tensor(7.), tensor(4.))
    """

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
        return self._result(-self.radius * self.view.maximizer(self.gauge, x), g, stacked)

    def norm(self, x: Tensor, *, stacked: bool = False) -> Tensor:
        """The gauge of the magnitudes: x is in the region where norm(x) <= radius."""
        return self._measure(self.gauge.norm, x, stacked)

    def dual_norm(self, g: Tensor, *, stacked: bool = False) -> Tensor:
        """max <x, g> over norm(x) <= 1; so <lmo(g), g> = -radius * dual_norm(g)."""
        return self._measure(self.gauge.dual_norm, g, stacked)

    def gap(self, x: Tensor, g: Tensor, *, stacked: bool = False) -> Tensor:
        """The Frank-Wolfe gap max <x - u, g> over u in the region: 0 exactly at stationary points."""
        products = x.double() * g.double()
        inner = products.flatten(1).sum(-1) if stacked else products.sum()
        return inner.to(working_dtype(g.dtype)) + self.radius * self.dual_norm(g, stacked=stacked)

    def project(self, x: Tensor, *, stacked: bool = False) -> Tensor:
        """argmin ||y - x|| over y in the region."""
        magnitudes, lift = self.view.split(self._stack(x, stacked).double())
        radius = magnitudes.new_full((magnitudes.shape[0], 1), self.radius)
        inside = self.gauge.norm(magnitudes) <= self.radius
        projected = lift(self.gauge.project(magnitudes, radius))
        # Where x is 1e12 times too long, floats cannot resolve the multiplier: the result must be feasible even then.
        projected = self._result(self.pull_inside(projected, stacked=True), x, stacked)
        # A point inside is returned unchanged: splitting and lifting it would round it.
        return torch.where(_per_block(inside, x), x, projected)

    def pull_inside(self, x: Tensor, *, stacked: bool = False) -> Tensor:
        """Return x where it is in the region, else x * radius / norm(x), which keeps the direction and is cheap."""
        norm = self.norm(x, stacked=stacked)
        # Half precisions round each entry once more, by half a unit: leave room for it.
        margin = 1 - torch.finfo(x.dtype).eps if norm.dtype != x.dtype else 1.0
        factor = torch.where(norm > self.radius, self.radius / norm * margin, 1)
        return (x * _per_block(factor, x)).to(x.dtype)

    def contains(self, x: Tensor, *, stacked: bool = False, tolerance: float = 1e-5) -> Tensor:
        """Whether norm(x) <= radius, up to a relative tolerance for rounding; a boolean tensor."""
        return self.norm(x, stacked=stacked) <= self.radius * (1 + tolerance)

    def contains_all_of_norm(self, norm: float | Tensor, shape: Sequence[int]) -> bool | Tensor:
        """Whether every tensor of this shape and L2 norm is in the region: a sufficient test that needs no SVD."""
        return norm * self.gauge.widest(self.count(shape)) <= self.radius

    def diameter(self, shape: Sequence[int]) -> float:
        """max ||x - y||_2 over the region, for tensors of this shape."""
        return 2 * self.radius * self.gauge.longest(self.count(shape))

    def with_diameter(self, diameter: float, shape: Sequence[int]) -> Ball:
        """Return this ball with the radius at which its L2 diameter is `diameter`."""
        return replace(self, radius=diameter / (2 * self.gauge.longest(self.count(shape))))

    def with_radius(self, radius: float) -> Ball:
        """Return this ball with another radius."""
        return replace(self, radius=radius)

    def count(self, shape: Sequence[int]) -> int:
        """Return how many magnitudes a tensor of this shape has; ValueError where the region is not defined on it."""
        try:
            if len(shape) == 0:
                raise ValueError("a scalar has no magnitudes to choose from")
            count = self.view.count(shape)
            self.gauge.check(count)
        except ValueError as error:
            raise ValueError(f"{self} on a tensor of shape {tuple(shape)}: {error}") from None
        return count

    def oracle(self, stack: Tensor, warm: Tensor | None = None, iterations: int = 1) -> tuple[Tensor, Tensor | None]:
        """argmax <u, x> over the UNIT ball for every x of the stack, as training computes it; times -radius it is the LMO.

        It never syncs with the host and can be captured in a CUDA graph. Spectral regions follow the leading subspace from `warm`
        instead of an SVD; their vertex is feasible but only nearly optimal. In float32 a gradient whose norm is below 1e-17
        counts as zero (`lmo` rescales first and has no such floor). Half precisions are computed in float32, which the warm start
        keeps.

        Args:
            stack: (b, *shape).
            warm: the warm start that the last call returned, or None.
            iterations: power iterations of spectral regions.

        Returns:
            The vertices (b, *shape), and the warm start for the next call; None for regions that need none.
        """
        vertices, warm = self.view.oracle(self.gauge, stack.to(working_dtype(stack.dtype)), warm, iterations)
        return vertices.to(stack.dtype), warm

    def plain(self) -> dict[str, Any]:
        """Return the ball as nested dictionaries of plain values, which `from_plain` reads."""
        return {"view": views.to_plain(self.view), "gauge": views.to_plain(self.gauge), "radius": self.radius}

    @staticmethod
    def from_plain(values: dict[str, Any]) -> Ball:
        """Return the ball that `plain` has described."""
        return Ball(_rebuild(values["view"]), _rebuild(values["gauge"]), float(values["radius"]))

    @property
    def name(self) -> str:
        """The name of the constructor of this pair of view and gauge, or a description where it has none."""
        view = type(self.view).__name__
        gauge = f"L{self.gauge.p:g}" if isinstance(self.gauge, Lp) else type(self.gauge).__name__
        return _NAMES.get((view, gauge)) or _NAMES.get((view, "Lp")) or f"{gauge} of {view}"

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
        """Return the stack divided by the largest entry of each block, and these entries: squares must not vanish or overflow."""
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
    """{ x >= 0 : sum(x) = radius }: no ball, so it has only a linear oracle, a projection and a membership test.

    >>> Simplex().lmo(torch.tensor([2.0, -1.0, 0.0]))
    tensor([0., 1., 0.])
    """

    radius: float = 1.0

    def lmo(self, g: Tensor) -> Tensor:
        """argmin <x, g> over the simplex: radius * e_j with j = argmin g, one nonzero entry even on ties."""
        vertex = torch.zeros_like(g).flatten()
        vertex.scatter_(0, g.flatten().argmin().unsqueeze(0), self.radius)
        return vertex.view(g.shape)

    def project(self, x: Tensor) -> Tensor:
        """argmin ||y - x|| over y in the simplex."""
        flat = x.double().flatten()
        return onto_simplex(flat, flat.new_tensor([self.radius])).view(x.shape).to(x.dtype)

    def contains(self, x: Tensor, *, tolerance: float = 1e-5) -> Tensor:
        """Whether x >= 0 and sum(x) = radius, up to a relative tolerance for rounding; a boolean tensor."""
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
    """conv{ x : at most k nonzero groups, ||x||_2 <= radius }: k filters move.

    Groups are the slices along an axis, or sets of entries with equal labels.
    """
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


# Every named region by its name, for lists and tests.
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
    """Return one value per block (b,), or a single value, in the shape that broadcasts against x."""
    return values.view([-1] + [1] * (x.ndim - 1))


__all__ = ["REGIONS", "Ball", "Simplex", *(name for name in REGIONS if name != "Simplex")]
