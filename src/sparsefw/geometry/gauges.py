"""Gauges: norms of magnitude vectors, each defined once.

A gauge is a norm that ignores signs, so it is enough to state it for m >= 0. A view (views.py) turns weights, filters or singular
values into such an m; the product of a view and a gauge is a feasible region (regions.py). All functions work along the last axis
and treat the leading axes as a batch.

With ``ball = {u : norm(u) <= 1}`` a gauge answers:

    norm(m)         the norm itself
    dual_norm(m)    max <u, m> over the ball
    maximizer(m)    a vertex u >= 0 of the ball that attains it; 0 for m = 0
    project(m, r)   argmin ||x - m|| over norm(x) <= r
    longest(n)      max ||u||_2 over the ball in R^n: half the L2 diameter
    widest(n)       max norm(u) over ||u||_2 <= 1 in R^n: a cheap bound, norm(m) <= widest * ||m||_2
    support(n)      the largest number of nonzero entries of a maximizer
    tip             the values of a maximizer on its support
    check(n)        ValueError where the gauge is not defined on R^n
"""

from __future__ import annotations

import enum
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsefw.geometry import projections
from sparsefw.geometry.select import keep_top_k
from sparsefw.scalars import is_whole


class Tip(enum.Enum):
    """The values of a maximizer on its support: they decide how much of a spectrum an oracle must compute."""

    PROPORTIONAL = "m / ||m||"
    FLAT = "all ones"
    CURVED = "anything else"


class Gauge(ABC):
    tip: Tip

    @abstractmethod
    def norm(self, m: Tensor) -> Tensor: ...

    @abstractmethod
    def dual_norm(self, m: Tensor) -> Tensor: ...

    @abstractmethod
    def maximizer(self, m: Tensor) -> Tensor: ...

    @abstractmethod
    def project(self, m: Tensor, radius: Tensor) -> Tensor: ...

    @abstractmethod
    def longest(self, count: int) -> float: ...

    @abstractmethod
    def widest(self, count: int) -> float: ...

    @abstractmethod
    def support(self, count: int) -> int: ...

    def check(self, count: int) -> None:
        """Raise ValueError where the gauge is not defined on `count` magnitudes."""


@dataclass(frozen=True)
class Lp(Gauge):
    """norm(m) = (sum m_i^p)^(1/p) for 1 <= p <= inf; its dual is Lq with 1/p + 1/q = 1.

    >>> Lp(1).norm(torch.tensor([3.0, 4.0])), Lp(1).dual_norm(torch.tensor([3.0, 4.0]))
    (tensor(7.), tensor(4.))
    """

    p: float

    def __post_init__(self) -> None:
        if not isinstance(self.p, (int, float)) or not self.p >= 1:
            raise ValueError(f"p must be at least 1 (inf allowed), got {self.p!r}: below 1 the ball is not convex")

    @property
    def q(self) -> float:
        """The exponent of the dual norm."""
        return math.inf if self.p == 1 else 1.0 if self.p == math.inf else self.p / (self.p - 1)

    @property
    def tip(self) -> Tip:  # type: ignore[override]
        return {1.0: Tip.PROPORTIONAL, 2.0: Tip.PROPORTIONAL, math.inf: Tip.FLAT}.get(float(self.p), Tip.CURVED)

    def norm(self, m: Tensor) -> Tensor:
        return torch.linalg.vector_norm(m, ord=self.p, dim=-1)

    def dual_norm(self, m: Tensor) -> Tensor:
        return torch.linalg.vector_norm(m, ord=self.q, dim=-1)

    def maximizer(self, m: Tensor) -> Tensor:
        if self.p == 1:
            return ones_where_nonzero(keep_top_k(m, 1))
        if self.p == math.inf:
            return ones_where_nonzero(m)
        if self.p == 2:
            return over(m, self.dual_norm(m))
        # Divide by the largest entry first: q - 1 grows without bound as p falls to 1, and so do powers of numbers above 1.
        power = over(m, m.amax(-1)) ** (self.q - 1)
        return over(power, self.norm(power))

    def project(self, m: Tensor, radius: Tensor) -> Tensor:
        if self.p == 1:
            return projections.onto_l1(m, radius)
        if self.p == 2:
            return projections.onto_l2(m, radius)
        if self.p == math.inf:
            return m.minimum(radius)
        return projections.onto_lp(m, radius, self.p)

    def longest(self, count: int) -> float:
        return max(1.0, count ** (0.5 - 1 / self.p))

    def widest(self, count: int) -> float:
        return max(1.0, count ** (1 / self.p - 0.5))

    def support(self, count: int) -> int:
        return 1 if self.p == 1 else count


@dataclass(frozen=True)
class KSparse(Gauge):
    """Unit ball: hull of the sign vectors with at most k nonzeros. norm(m) = max(max m, sum m / k).

    >>> KSparse(2).maximizer(torch.tensor([3.0, 1.0, 2.0]))
    tensor([1., 0., 1.])
    """

    k: int
    tip = Tip.FLAT

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", _count("k", self.k))

    def norm(self, m: Tensor) -> Tensor:
        return torch.maximum(m.amax(-1), m.sum(-1) / self.k)

    def dual_norm(self, m: Tensor) -> Tensor:
        return keep_top_k(m, self.k).sum(-1)

    def maximizer(self, m: Tensor) -> Tensor:
        return ones_where_nonzero(keep_top_k(m, self.k))

    def project(self, m: Tensor, radius: Tensor) -> Tensor:
        return projections.onto_k_sparse(m, radius, self.k)

    def longest(self, count: int) -> float:
        return math.sqrt(self.k)

    def widest(self, count: int) -> float:
        return max(1.0, math.sqrt(count) / self.k)

    def support(self, count: int) -> int:
        return self.k

    def check(self, count: int) -> None:
        _check_fits("k", self.k, count)


@dataclass(frozen=True)
class KSupport(Gauge):
    """Unit ball: hull of the vectors with at most k nonzeros and L2 norm at most 1 (Argyriou et al. 2012).

    >>> KSupport(2).maximizer(torch.tensor([3.0, 1.0, 4.0]))
    tensor([0.6000, 0.0000, 0.8000])
    """

    k: int
    tip = Tip.PROPORTIONAL

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", _count("k", self.k))

    def norm(self, m: Tensor) -> Tensor:
        """norm^2 = (the j largest entries)^2 + (sum of the others)^2 / (k - j), for the right j < k.

        The right j is the largest whose j-th entry exceeds the average (sum of the others) / (k - j). Neighbouring j
        differ by the square of the slack of that test, so a near-tie decided wrongly costs nothing, and no tolerance is needed.
        """
        k = self.k
        ordered = m.sort(dim=-1, descending=True).values
        tails = ordered.flip(-1).cumsum(-1).flip(-1)[..., :k]  # tails[j] = sum of all but the j largest
        heads = torch.nn.functional.pad(ordered.square().cumsum(-1), (1, 0))[..., :k]
        last_kept = torch.nn.functional.pad(ordered[..., : k - 1], (1, 0), value=math.inf)  # j = 0 always qualifies
        shares = torch.arange(k, 0, -1, dtype=m.dtype, device=m.device)  # k - j
        # The largest j that qualifies is wanted, and argmax finds the first: search in reversed order.
        qualifies = (shares * last_kept > tails).flip(-1).to(torch.uint8)
        j = (k - 1 - qualifies.argmax(-1)).unsqueeze(-1)
        tail = tails.gather(-1, j)
        return (heads.gather(-1, j) + tail.square() / (k - j)).squeeze(-1).sqrt()

    def dual_norm(self, m: Tensor) -> Tensor:
        return torch.linalg.vector_norm(keep_top_k(m, self.k), dim=-1)

    def maximizer(self, m: Tensor) -> Tensor:
        kept = keep_top_k(m, self.k)
        return over(kept, torch.linalg.vector_norm(kept, dim=-1))

    def project(self, m: Tensor, radius: Tensor) -> Tensor:
        one_block = m.unsqueeze(-2)
        return projections.onto_k_support(one_block, radius, self.k, lambda x: self.norm(x.squeeze(-2))).squeeze(-2)

    def longest(self, count: int) -> float:
        return 1.0

    def widest(self, count: int) -> float:
        return math.sqrt(count / self.k)

    def support(self, count: int) -> int:
        return self.k

    def check(self, count: int) -> None:
        _check_fits("k", self.k, count)


@dataclass(frozen=True)
class NM(Gauge):
    """Unit ball: hull of the vectors of L2 norm at most 1 with at most n nonzeros in each block of m consecutive entries.

    norm(x)^2 = sum over blocks of (n-support norm)^2: the dual norm is an L2 combination of block norms, hence so is the norm.

    >>> NM(1, 2).maximizer(torch.tensor([3.0, 1.0, 2.0, 4.0]))
    tensor([0.6000, 0.0000, 0.0000, 0.8000])
    """

    n: int
    m: int
    tip = Tip.CURVED

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", _count("n", self.n))
        object.__setattr__(self, "m", _count("m", self.m))
        if not self.n <= self.m:
            raise ValueError(f"N:M needs N <= M, got {self.n}:{self.m}")

    @property
    def _within(self) -> KSupport:
        return KSupport(self.n)

    def _blocks(self, m: Tensor) -> Tensor:
        return m.unflatten(-1, (-1, self.m))

    def norm(self, m: Tensor) -> Tensor:
        return torch.linalg.vector_norm(self._within.norm(self._blocks(m)), dim=-1)

    def dual_norm(self, m: Tensor) -> Tensor:
        return torch.linalg.vector_norm(self._within.dual_norm(self._blocks(m)), dim=-1)

    def maximizer(self, m: Tensor) -> Tensor:
        kept = keep_top_k(self._blocks(m), self.n).flatten(-2)
        return over(kept, torch.linalg.vector_norm(kept, dim=-1))

    def project(self, m: Tensor, radius: Tensor) -> Tensor:
        joint = lambda x: self.norm(x.flatten(-2))  # noqa: E731
        return projections.onto_k_support(self._blocks(m), radius, self.n, joint).flatten(-2)

    def longest(self, count: int) -> float:
        return 1.0

    def widest(self, count: int) -> float:
        return math.sqrt(self.m / self.n)

    def support(self, count: int) -> int:
        return count // self.m * self.n

    def check(self, count: int) -> None:
        if count % self.m:
            raise ValueError(f"{count} magnitudes do not divide into blocks of {self.m}")


def divide(numerator: Tensor | float, norm: Tensor) -> Tensor:
    """Return numerator / norm, and 0 where the norm is negligible: a vector without a direction stays 0."""
    empty = negligible(norm)  # NaN is not negligible: it must show in the result
    return torch.where(empty, 0, numerator / torch.where(empty, 1, norm))


def over(m: Tensor, norm: Tensor) -> Tensor:
    """Return each vector along the last axis divided by its norm, and 0 where that is negligible."""
    # Inverting the few norms leaves one pass over the many entries.
    return m * divide(1, norm).unsqueeze(-1)


def negligible(norm: Tensor) -> Tensor:
    """Return where a norm is too small to be trusted, because its squares were denormal numbers: 7e-18 in float32."""
    return norm <= 64 * torch.finfo(norm.dtype).tiny ** 0.5


def ones_where_nonzero(m: Tensor) -> Tensor:
    """Return m / m with 0 / 0 = 0: unlike a comparison it lets NaN through."""
    return m / torch.where(m == 0, 1, m)


def _count(name: str, value: int) -> int:
    if not is_whole(value) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
    return int(value)


def _check_fits(name: str, value: int, count: int) -> None:
    if value > count:
        raise ValueError(f"{name}={value} must be at most {count}, the number of magnitudes")
