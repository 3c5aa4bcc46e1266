"""Penalties, soft cuts and hard cuts in every view: with them the rivals of a constraint are a line each.

    direction   the gradient of sum(m)                                     lift(1 where m > 0)
    soft cut    argmin 1/2 ||y - x||^2 + t sum(m(y))                        lift(max(m - t, 0))
    hard cut    argmin ||y - x|| with at most `keep` nonzero magnitudes     lift(the largest)
    energy cut  the fewest magnitudes with ||y - x||^2 <= lost ||x||^2      lift(the largest)

                Elements           Groups                 Spectrum
    penalty     L1                 SSL                    NUC
    soft cut    lasso              GLT                    SVDEnergy
    hard cut    weight pruning     SFP, filter pruning    TRP, low rank

All of these work on stacks (b, *shape), as views do. For compression, the hard cuts of entries and spectra come in other forms:
as masks of entries, over several tensors or N of every M, and as a pair of thin factors.

Spectra are cut by a full SVD under Spectrum(ExactSVD()). Under any other solver, directions and soft cuts are computed by
Newton-Schulz iterations: without an SVD and without waiting for the device, exact for singular values above a small fraction of
the largest (see subspace.polar_factor).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sparsefw.geometry import subspace
from sparsefw.geometry.gauges import ones_where_nonzero
from sparsefw.geometry.matrices import wide_matrices
from sparsefw.geometry.select import keep_top_k, stable_top_k_mask, top_k_mask
from sparsefw.geometry.views import ExactSVD, Spectrum, View

# Relative to the largest distance from the threshold: singular values nearer to it are cut only in part.
_SHARPEST = 1e-5


def direction(view: View, x: Tensor) -> Tensor:
    """Return a subgradient of the sum of magnitudes; it is zero on entries and filters that are zero.

    Under an SVD, singular values that are zero up to rounding may count: any U V^T is a subgradient there.
    """
    if _is_iterative(view):
        matrices, back = wide_matrices(x)
        return back(subspace.polar_factor(matrices))
    magnitudes, lift = view.split(x)
    return lift(ones_where_nonzero(magnitudes))


def soft_cut(view: View, x: Tensor, threshold: float | Tensor) -> Tensor:
    """argmin 1/2 ||y - x||^2 + threshold * sum(m(y)): every magnitude is lowered by the threshold, down to 0.

    >>> from sparsefw.geometry import Elements
    >>> soft_cut(Elements(), torch.tensor([[3.0, -1.0, 0.5]]), 1.0)
    tensor([[2., -0., 0.]])
    """
    if _is_iterative(view):
        matrices, back = wide_matrices(x)
        return back(_iterative_soft_cut(matrices, threshold))
    magnitudes, lift = view.split(x)
    return lift((magnitudes - threshold).clamp(min=0))


def hard_cut(view: View, x: Tensor, keep: int) -> Tensor:
    """argmin ||y - x|| over y with at most `keep` nonzero magnitudes: the largest stay unchanged.

    >>> from sparsefw.geometry import Groups
    >>> hard_cut(Groups(), torch.tensor([[[3.0, 4.0], [1.0, 0.0]]]), keep=1)
    tensor([[[3., 4.],
             [0., 0.]]])
    """
    magnitudes, lift = view.split(x)
    return lift(keep_top_k(magnitudes, keep))


def energy_cut(view: View, x: Tensor, lost: float) -> Tensor:
    """argmin of the number of nonzero magnitudes over y with ||y - x||^2 <= lost * ||x||^2: the largest stay unchanged.

    For views whose magnitudes come in descending order, such as Spectrum.
    """
    magnitudes, lift = view.split(x)
    return lift(torch.where(_holds_energy(magnitudes, lost), magnitudes, 0))


def energy_cut_direction(view: View, x: Tensor, lost: float) -> Tensor:
    """Return a subgradient of the sum of those magnitudes that energy_cut keeps."""
    magnitudes, lift = view.split(x)
    return lift(_holds_energy(magnitudes, lost).to(magnitudes.dtype))


def largest_masks(tensors: Sequence[Tensor], keep: int) -> list[Tensor]:
    """Return a mask for each tensor: True at exactly the `keep` largest entries of all together, of equal ones the first.

    >>> largest_masks([torch.tensor([3.0, -1.0]), torch.tensor([-2.0])], keep=2)
    [tensor([ True, False]), tensor([True])]
    """
    magnitudes = torch.cat([tensor.detach().abs().flatten() for tensor in tensors])
    masks = stable_top_k_mask(magnitudes, keep).split([tensor.numel() for tensor in tensors])
    return [mask.view(tensor.shape) for mask, tensor in zip(masks, tensors, strict=True)]


def n_m_mask(weight: Tensor, n: int, m: int, axis: int = 1) -> Tensor:
    """Return True at the n largest of every m consecutive entries along the axis; all True where it has at most n.

    >>> n_m_mask(torch.tensor([[4.0, 1.0, -3.0, 2.0]]), n=2, m=4)
    tensor([[ True, False,  True, False]])
    """
    along = weight.detach().abs().movedim(axis, -1)
    length = along.shape[-1]
    # Padding counts less than any entry: it must not take the place of one.
    blocks = torch.nn.functional.pad(along, (0, -length % m), value=-1.0).unflatten(-1, (-1, m))
    return top_k_mask(blocks, n).flatten(-2)[..., :length].movedim(-1, axis)


def low_rank_factors(matrices: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """argmin ||W - B A|| over B (b, n, rank) and A (b, rank, m), balanced: B^T B = A A^T = diag(s)."""
    W = matrices.detach().double()
    if W.shape[1] > W.shape[2]:
        inner, outer = low_rank_factors(matrices.mT, rank)
        return outer.mT, inner.mT
    U, s = subspace.gram_vectors(W)
    U = U[..., :rank]
    root = s[:, :rank].sqrt()
    inner = (U.mT @ W) / torch.where(root > 0, root, 1).unsqueeze(2)
    outer = U * root.unsqueeze(1)
    return outer.to(matrices.dtype), inner.to(matrices.dtype)


def _holds_energy(magnitudes: Tensor, lost: float) -> Tensor:
    """Return True at the fewest leading magnitudes, in descending order, that leave out at most `lost` of the sum of squares."""
    energy = magnitudes.double().square()
    lost_from = energy.flip(-1).cumsum(-1).flip(-1)  # [i]: what is lost without magnitude i and all smaller ones
    return lost_from > lost * lost_from[..., :1]


def _is_iterative(view: View) -> bool:
    return isinstance(view, Spectrum) and not isinstance(view.solver, ExactSVD)


def _iterative_soft_cut(W: Tensor, threshold: float | Tensor) -> Tensor:
    """U max(S - t, 0) V^T of wide matrices, without U, S and V.

    With P = U V^T the polar factor and H = W P^T = U S U^T: max(S - t, 0) is half of A + A sign(A) for A = H - t, and the sign
    of a symmetric matrix is its polar factor.
    """
    P = subspace.polar_factor(W.double(), _SHARPEST)
    A = W.double() @ P.mT
    A.diagonal(dim1=-2, dim2=-1).sub_(threshold)
    positive = (A + A @ subspace.polar_factor(A, _SHARPEST)) / 2
    return (positive @ P).to(W.dtype)
