"""Views: what counts as one magnitude of a tensor.

Pruning weights, pruning filters and lowering ranks look like three problems. They are one problem in three views. Each of them
describes a weight by a list of numbers m >= 0, its magnitudes: the absolute values of its entries, the norms of its filters, or
its singular values. In each of them, a weight is easy to compress when few of these numbers are large and all others are nearly
zero. A view is such a description. It splits a tensor x into its magnitudes and a lift, the function that turns changed
magnitudes back into a tensor:

    Elements   m = |x|               lift(m') = sign(x) * m'
    Groups     m = norms of groups   lift(m') = m'_i * x_i / |x_i|     filters, neurons, heads, any partition
    Spectrum   m = singular values   lift(m') = U diag(m') V^T         a convolution n x c x d x d seen as n x (c d d)

Two identities hold in every view, and everything else rests on them:

    <lift(m'), x> = <m', m>          ||lift(m')|| = ||m'||

Because of them, a problem about the tensor is solved on the vector m, and its solution lifted: the best vertex of a ball, the
nearest point in it, the nearest tensor with few nonzero magnitudes. What "few" and "large" mean is left to the gauge (gauges.py),
a norm of m. Three known sets show the pattern. They have the same gauge, sum(m) <= 1: under Elements it gives the L1 ball of the
lasso, under Groups the ball of the group lasso, under Spectrum the nuclear-norm ball.

Views work on a stack: x has the shape (b, *shape) for b blocks of equal shape, and magnitudes have the shape (b, count).
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from sparsefw.geometry import subspace
from sparsefw.geometry.gauges import Gauge, Tip, divide, over
from sparsefw.geometry.matrices import matrices_of, wide_matrices
from sparsefw.geometry.select import top_k_indices

Lift = Callable[[Tensor], Tensor]
Shape = Sequence[int]


class View(ABC):
    @abstractmethod
    def split(self, x: Tensor) -> tuple[Tensor, Lift]:
        """Return the magnitudes (b, count) of a stack (b, *shape), and the function that lifts changed magnitudes."""

    @abstractmethod
    def count(self, shape: Shape) -> int:
        """Return how many magnitudes a tensor of this shape has; ValueError where the view does not apply."""

    def magnitudes(self, x: Tensor) -> Tensor:
        """Return the magnitudes alone."""
        return self.split(x)[0]

    def maximizer(self, gauge: Gauge, x: Tensor) -> Tensor:
        """argmax <u, x> over the unit ball of the gauge: a vertex, exactly optimal."""
        magnitudes, lift = self.split(x)
        return lift(gauge.maximizer(magnitudes))

    def oracle(self, gauge: Gauge, x: Tensor, warm: Tensor | None, iterations: int) -> tuple[Tensor, Tensor | None]:
        """The maximizer as training computes it, without a host sync.

        Args:
            gauge: the norm whose unit ball is maximised over.
            x: the stack (b, *shape).
            warm: the warm start that the last call returned; only Spectrum has one.
            iterations: how many power iterations Spectrum takes.

        Returns:
            The vertices, and the warm start for the next call.
        """
        return self.maximizer(gauge, x), None

    @property
    def any_column_order(self) -> bool:
        """Whether permuting the entries behind the first axis changes nothing, so that memory order may be used."""
        return False


@dataclass(frozen=True)
class Elements(View):
    """Magnitudes are the absolute values of the entries.

    axis     list them along this axis; None: in memory order
    block    pad the axis with zeros to whole blocks of this length
    """

    axis: int | None = None
    block: int = 1

    def split(self, x: Tensor) -> tuple[Tensor, Lift]:
        if self.axis is None:
            # The sign of 0 does not matter: no gauge raises a magnitude that is 0.
            return x.abs().flatten(1), lambda m: m.view(x.shape).copysign(x)
        position = _position(self.axis, x.ndim - 1) + 1
        along = x.movedim(position, -1)
        length = along.shape[-1]
        padded = torch.nn.functional.pad(along, (0, -length % self.block))

        def lift(m: Tensor) -> Tensor:
            return m.view(padded.shape)[..., :length].copysign(along).movedim(-1, position)

        return padded.abs().flatten(1), lift

    def count(self, shape: Shape) -> int:
        entries = _numel(shape)
        if self.axis is None:
            return entries
        length = shape[_position(self.axis, len(shape))]
        return entries // max(length, 1) * (length + -length % self.block)

    @property
    def any_column_order(self) -> bool:
        return self.axis is None


class Partition:
    """The group of each entry of a flattened tensor: labels 0 .. count-1, each used at least once."""

    def __init__(self, labels: Tensor | Sequence[int]) -> None:
        flat = torch.as_tensor(labels).detach().cpu().flatten()
        if flat.is_floating_point() or flat.dtype == torch.bool or flat.numel() == 0:
            raise ValueError(
                f"group labels must be a non-empty tensor of whole numbers, got {flat.dtype}, {flat.numel()} of them"
            )
        self.labels = flat.long()
        self.count = int(self.labels.max()) + 1
        missing = sorted(set(range(self.count)) - set(self.labels.unique().tolist()))
        if missing or int(self.labels.min()) < 0:
            raise ValueError(
                f"group labels must be 0 .. {self.count - 1} without gaps: {missing[:5]} unused, {int(self.labels.min())} lowest"
            )
        self._digest = hashlib.sha256(self.labels.numpy().tobytes()).hexdigest()
        self._moved: dict[torch.device, Tensor] = {}

    def on(self, device: torch.device) -> Tensor:
        """Return the labels on this device, copied there once."""
        if device not in self._moved:
            self._moved[device] = self.labels.to(device)
        return self._moved[device]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Partition) and self._digest == other._digest

    def __hash__(self) -> int:
        return hash(self._digest)

    def __repr__(self) -> str:
        return f"Partition({self.count} groups of {self.labels.numel()} entries)"


@dataclass(frozen=True)
class Groups(View):
    """Magnitudes are the L2 norms of disjoint groups: the slices along `axis` (0: filters, neurons), or a `partition`.

    width    how many adjacent slices form a group, such as the columns of an attention head
    """

    axis: int = 0
    partition: Partition | None = None
    width: int = 1

    def split(self, x: Tensor) -> tuple[Tensor, Lift]:
        if self.partition is not None:
            labels = self.partition.on(x.device)
            flat = x.flatten(1)
            sums = flat.new_zeros(x.shape[0], self.partition.count).index_add_(1, labels, flat.square())
            norms = sums.sqrt()
            return norms, lambda m: (flat * divide(m, norms)[:, labels]).view(x.shape)
        position = _position(self.axis, x.ndim - 1) + 1
        if self.width > 1:
            slices, lift = replace(self, width=1).split(x.unflatten(position, (-1, self.width)))
            return slices, lambda m: lift(m).flatten(position, position + 1)
        others = [d for d in range(1, x.ndim) if d != position]
        norms = torch.linalg.vector_norm(x, dim=others) if others else x.abs()
        spread = [x.shape[0]] + [1] * (x.ndim - 1)
        spread[position] = -1
        return norms, lambda m: x * divide(m, norms).view(spread)

    def count(self, shape: Shape) -> int:
        if self.partition is None:
            length = shape[_position(self.axis, len(shape))]
            if length % self.width:
                raise ValueError(f"groups of {self.width} do not divide the {length} slices along axis {self.axis}")
            return length // self.width
        if self.partition.labels.numel() != _numel(shape):
            raise ValueError(
                f"the partition labels {self.partition.labels.numel()} entries, the tensor has {_numel(shape)}"
            )
        return self.partition.count

    @property
    def rows(self) -> bool:
        """Whether a group is one slice along the first axis."""
        return self.axis == 0 and self.partition is None and self.width == 1

    @property
    def any_column_order(self) -> bool:
        return self.rows


def maximizer_rows(gauge: Gauge, norms: Tensor) -> tuple[Tensor, Tensor]:
    """Return the maximizer of a view of rows without building it.

    Args:
        gauge: a gauge of support k.
        norms: (b, n), the norms of the rows of x.

    Returns:
        (b, k) the rows on which the maximizer is not 0, and (b, k) the factors by which these rows of x are multiplied.
    """
    unit = gauge.maximizer(norms)
    rows = top_k_indices(unit, gauge.support(norms.shape[-1]))
    return rows, divide(unit.gather(-1, rows), norms.gather(-1, rows))


@dataclass(frozen=True)
class ExactSVD:
    """Compute the oracle by a full singular value decomposition: exact, slow, syncs with the host."""


@dataclass(frozen=True)
class WarmSubspace:
    """Compute the oracle by block power iterations from the last step's subspace: no SVD, no host sync, nearly optimal.

    iterations         of each step
    first_iterations   of each of the first FIRST_STEPS steps, in which momentum buffers turn fast
    """

    iterations: int = 1
    first_iterations: int = 4

    def __post_init__(self) -> None:
        if min(self.iterations, self.first_iterations) < 1:
            raise ValueError(f"a warm-started oracle needs at least one iteration a step, got {self}")


@dataclass(frozen=True)
class Spectrum(View):
    """Magnitudes are the singular values of the tensor seen as a matrix: first axis times all others."""

    solver: ExactSVD | WarmSubspace = field(default_factory=WarmSubspace)

    def __post_init__(self) -> None:
        if not isinstance(self.solver, (ExactSVD, WarmSubspace)):
            raise ValueError(f"solver must be ExactSVD() or WarmSubspace(), got {self.solver!r}")

    def split(self, x: Tensor) -> tuple[Tensor, Lift]:
        U, s, Vh = subspace.svd(matrices_of(x))
        return s, lambda m: ((U * m.unsqueeze(-2)) @ Vh).view(x.shape)

    def magnitudes(self, x: Tensor) -> Tensor:
        return subspace.singular_values(matrices_of(x))

    def count(self, shape: Shape) -> int:
        return min(shape[0], _numel(shape[1:]))

    def oracle(self, gauge: Gauge, x: Tensor, warm: Tensor | None, iterations: int) -> tuple[Tensor, Tensor | None]:
        matrices, back = wide_matrices(x)
        vertices, warm = self._wide_oracle(gauge, matrices, warm, iterations)
        return back(vertices), warm

    def _wide_oracle(
        self, gauge: Gauge, G: Tensor, warm: Tensor | None, iterations: int
    ) -> tuple[Tensor, Tensor | None]:
        """Compute only that part of the spectrum on which a maximizer can be nonzero: the gauge's support."""
        count = G.shape[1]
        if self._by_svd(gauge):
            return self.maximizer(gauge, G), None
        if not self.follows(gauge, count):
            return (_over_norm(G) if gauge.tip is Tip.PROPORTIONAL else subspace.polar_factor(G)), None
        k = gauge.support(count)
        columns = subspace.followed_columns(k, count)
        is_usable = warm is not None and warm.shape[-1] >= columns  # k may have changed since
        V = warm[..., :columns] if is_usable else subspace.start(G, columns)  # type: ignore[index]
        basis, V = subspace.top_subspace(G, V, iterations)
        U, B = subspace.leading(basis, k)
        if gauge.tip is Tip.PROPORTIONAL:
            return _over_norm(U @ B), V  # divided by its own norm: feasible however inexact U is
        return U @ subspace.polar_factor(B), V

    def _by_svd(self, gauge: Gauge) -> bool:
        return isinstance(self.solver, ExactSVD) or gauge.tip is Tip.CURVED

    def follows(self, gauge: Gauge, count: int) -> bool:
        """Whether the oracle follows a subspace by iterations, so that its vertex is only nearly optimal."""
        return not self._by_svd(gauge) and gauge.support(count) < count

    def iterations(self, age: int) -> int:
        """Return the number of power iterations for a block that has taken `age` steps."""
        if isinstance(self.solver, ExactSVD):
            return 0
        return self.solver.first_iterations if age < FIRST_STEPS else self.solver.iterations

    @property
    def any_column_order(self) -> bool:
        return True


FIRST_STEPS = 5


def _over_norm(stack: Tensor) -> Tensor:
    return over(stack.flatten(1), torch.linalg.vector_norm(stack.flatten(1), dim=-1)).view(stack.shape)


def _position(axis: int, ndim: int) -> int:
    if not -ndim <= axis < ndim:
        raise ValueError(f"axis {axis} does not exist in a tensor of {ndim} dimensions")
    return axis % ndim


def _numel(shape: Shape) -> int:
    total = 1
    for length in shape:
        total *= int(length)
    return total


def to_plain(value: Any) -> Any:
    """Return a view or a gauge as dictionaries of plain values, for state dicts and files that are never unpickled."""
    if isinstance(value, Partition):
        return {"type": "Partition", "labels": value.labels.tolist()}
    if isinstance(value, (View, Gauge, ExactSVD, WarmSubspace)):
        return {"type": type(value).__name__, **{name: to_plain(part) for name, part in vars(value).items()}}
    return value
