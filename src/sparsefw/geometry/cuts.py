"""What a penalty, a soft cut and a hard cut are, in every view: with them the rivals of a constraint are a line each.

    direction   the gradient of sum(m)                                     lift(1 where m > 0)
    soft cut    argmin 1/2 ||y - x||^2 + t sum(m(y))                        lift(max(m - t, 0))
    hard cut    argmin ||y - x|| with at most `keep` nonzero magnitudes     lift(the largest)

                Elements           Groups                 Spectrum
    penalty     L1                 SSL                    NUC
    soft cut    lasso              GLT                    SVDEnergy
    hard cut    weight pruning     SFP, filter pruning    TRP, low rank

All work on stacks (b, *shape), as views do. Spectra are cut by a full SVD under Spectrum(ExactSVD()); under any other solver
directions and soft cuts are computed by Newton-Schulz iterations: without an SVD and without waiting for the device, exact for
singular values above a small fraction of the largest (see subspace.polar_factor).
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from sparsefw.geometry import subspace
from sparsefw.geometry.gauges import ones_where_nonzero
from sparsefw.geometry.select import keep_top_k
from sparsefw.geometry.views import ExactSVD, Spectrum, View

_SHARPEST = 1e-5  # of the largest difference to the threshold: singular values nearer to it are cut only in part


def direction(view: View, x: Tensor) -> Tensor:
    """A subgradient of the sum of magnitudes; on entries and filters that are zero it is zero.

    Singular values that are zero but for rounding may count under an SVD: any U V^T is a subgradient there.
    """
    if _by_iterations(view):
        return _as_wide_matrix(x, subspace.polar_factor)
    magnitudes, lift = view.split(x)
    return lift(ones_where_nonzero(magnitudes))


def soft_cut(view: View, x: Tensor, threshold: float | Tensor) -> Tensor:
    """argmin 1/2 ||y - x||^2 + threshold * sum(m(y)): every magnitude is lowered by the threshold, down to 0."""
    if _by_iterations(view):
        return _as_wide_matrix(x, lambda matrix: _soft_cut_by_iterations(matrix, threshold))
    magnitudes, lift = view.split(x)
    return lift((magnitudes - threshold).clamp(min=0))


def hard_cut(view: View, x: Tensor, keep: int) -> Tensor:
    """argmin ||y - x|| over y with at most `keep` nonzero magnitudes: the largest stay as they are."""
    magnitudes, lift = view.split(x)
    return lift(keep_top_k(magnitudes, keep))


def _by_iterations(view: View) -> bool:
    return isinstance(view, Spectrum) and not isinstance(view.solver, ExactSVD)


def _as_wide_matrix(x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """`change` of the stack seen as matrices (b, n, m) with n <= m; it must commute with transposition."""
    matrix = x.reshape(x.shape[0], x.shape[1], -1)
    changed = change(matrix.mT).mT if matrix.shape[1] > matrix.shape[2] else change(matrix)
    return changed.reshape(x.shape)


def _soft_cut_by_iterations(W: Tensor, threshold: float | Tensor) -> Tensor:
    """U max(S - t, 0) V^T without U, S and V.

    With P = U V^T the polar factor and H = W P^T = U S U^T: max(S - t, 0) is half of A + A sign(A) for A = H - t, and the sign
    of a symmetric matrix is its polar factor.
    """
    P = subspace.polar_factor(W.double(), _SHARPEST)
    A = W.double() @ P.mT
    A.diagonal(dim1=-2, dim2=-1).sub_(threshold)
    positive = (A + A @ subspace.polar_factor(A, _SHARPEST)) / 2
    return (positive @ P).to(W.dtype)
