"""All eigenvectors of symmetric matrices that drift, followed from step to step without a decomposition.

A rank that is drawn anew in every step needs the leading subspace of every size, so `subspace.top_subspace` is not enough.
Jacobi's rotation of every pair of axes, all pairs at once, needs matrix products only: no host sync, so it can be captured.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Of one turn, as a bound of its largest singular value: then V + V S has singular values below sqrt(3), where the iteration of
# `_orthogonal` converges.
_MOST_TURNED = 1.4
_ROUNDS = 5
_ROUNDING = 1e-5  # of the largest entry: axes that differ by less would turn at random, and use up the bound


def turned(basis: Tensor, gram: Tensor) -> tuple[Tensor, Tensor]:
    """Turn orthonormal columns towards the eigenvectors of symmetric matrices; return them and the quotients before the turn.

    With A = V^T G V, the pair (i, j) would become diagonal by a rotation of  S_ij = atan(2 A_ij / (A_jj - A_ii)) / 2. All
    pairs turn at once, together by a bounded angle, and V becomes the orthogonal matrix nearest to  V + V S. Where A is nearly
    diagonal, a turn squares the error; from any other basis, some ten to a hundred turns lead to the eigenvectors.

    Args:
        basis: V (..., n, n), with orthonormal columns.
        gram: G (..., n, n). Where it is not finite, the basis stays as it is.

    Returns:
        V, and the diagonal of A (..., n): the eigenvalues, once V has arrived.
    """
    A = basis.mT @ (gram @ basis)
    quotients = A.diagonal(dim1=-2, dim2=-1)
    gaps = quotients.unsqueeze(-2) - quotients.unsqueeze(-1)
    upper = torch.triu(torch.ones_like(A), 1)  # every pair once, and equal quotients turn as well
    rounding = _ROUNDING * A.abs().amax((-2, -1), keepdim=True)
    half = upper * 0.5 * torch.atan2(2 * A * torch.where(gaps >= 0, 1.0, -1.0), gaps.abs() + rounding)
    S = half - half.mT
    bound = S.abs().sum(-1).amax(-1)[..., None, None]
    S = S * (_MOST_TURNED / bound).clamp(max=1)
    V = _orthogonal(basis + basis @ S)
    finite = V.isfinite().flatten(-2).all(-1)
    return torch.where(finite[..., None, None], V, basis), quotients


def _orthogonal(X: Tensor) -> Tensor:
    """Return the orthogonal matrix nearest to X, by the iteration of Newton and Schulz."""
    for _ in range(_ROUNDS):
        X = 1.5 * X - 0.5 * X @ (X.mT @ X)
    return X
