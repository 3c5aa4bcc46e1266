"""Leading singular subspaces without an SVD, and the SVD itself with its fallbacks.

The spectral k-support oracle needs no singular triplets. For any U with k orthonormal columns, the best feasible point with
column space in span(U) is ``-r U U^T G / ||U^T G||``, and it is optimal when U spans the top k left singular vectors of G. So it
is enough to maintain such a U while G drifts from step to step: one block power iteration from the last step's subspace, which is
three matrix products and a small Cholesky factor. Where k is small, a single direction that lags behind is a large share of all:
there a few more directions are followed, and the best k chosen among them (`leading`).

Feasibility never depends on how well this converges: any matrix of rank k and norm r is feasible. Only the quality of the vertex
does, and `SFW.diagnostics` measures and bounds it.

Legend: G (b, n, m) with n <= m, U (b, n, c), B = U^T G (b, c, m), V (b, m, c) the warm start, for c >= k columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from sparsefw.geometry.precision import HALF

# Relative to a unit diagonal in float64: far above the rounding of float32 columns squared (4e-15), far below anything
# that would bend a direction that matters. It makes the Gram matrix of dependent columns positive definite.
_SHIFT = 1e-12
FOLLOWED = 16  # directions, where fewer are wanted
_ROUNDS = 3  # of orthogonal iteration among them


class Basis(NamedTuple):
    """basis U (b, n, c) and coefficients B = U^T G (b, c, m): the nearest matrix to G with column space in span(U) is U B."""

    basis: Tensor
    coefficients: Tensor


def start(matrix: Tensor, k: int) -> Tensor:
    """Return a V (b, m, k) in general position that depends on the shape alone, so that reruns and processes agree.

    Quadratic phases modulo 1 look random, need no generator, and can be compiled and captured.
    """
    b, _, m = matrix.shape
    n = torch.arange(1, m * k + 1, dtype=torch.float64, device=matrix.device).view(m, k)
    phases = (n * n * 0.6180339887498949 + n * 0.4142135623730951).frac()
    return ((phases - 0.5) * math.sqrt(12 / m)).to(matrix.dtype).expand(b, m, k).clone()


def top_subspace(G: Tensor, V: Tensor, iterations: int) -> tuple[Basis, Tensor]:
    """Return (U, U^T G) for U near the leading left singular vectors of G, and the V from which the next call starts."""
    for _ in range(iterations):
        U = orthonormal(G @ V)
        B = U.mT @ G
        lengths = torch.linalg.vector_norm(B, dim=-1)  # (b, c)
        # A vanished or overflown direction keeps its old column: a zero gradient must not erase the warm start.
        usable = (lengths > 0) & lengths.isfinite()
        V = torch.where(usable.unsqueeze(-2), B.mT / torch.where(usable, lengths, 1).unsqueeze(-2), V)
    return Basis(U, B), V


def followed_columns(k: int, count: int) -> int:
    """Return how many directions to follow for the k leading ones of `count`: more than k where k is below 16 and few of all.

    >>> followed_columns(4, 100), followed_columns(4, 10), followed_columns(64, 512)
    (16, 4, 64)
    """
    return k if 4 * k >= count else min(count, max(k, FOLLOWED))


def leading(subspace: Basis, k: int) -> Basis:
    """Return the k leading directions within the span of U: the leading eigenvectors of the small matrix H = B B^T.

    By orthogonal iteration Z <- orth(H^2 Z) from its k longest axes, which are nearly right: the last step's were.
    """
    U, B = subspace
    if U.shape[-1] == k:
        return subspace
    H = B.double() @ B.double().mT
    axes = H.diagonal(dim1=-2, dim2=-1)  # squares of their lengths
    trace = axes.sum(-1)[:, None, None]
    H = H / torch.where(trace > 0, trace, 1)
    longest = axes.argsort(dim=-1, descending=True)[:, :k]
    Z = torch.nn.functional.one_hot(longest, H.shape[-1]).to(H).mT
    H = H @ H
    for _ in range(_ROUNDS):
        Z = orthonormal(H @ Z)
    Z = Z.to(U.dtype)
    return Basis(U @ Z, Z.mT @ B)


def orthonormal(P: Tensor) -> Tensor:
    """Return orthonormal columns with the span of P, by CholeskyQR2; a zero column stays zero.

    The Gram matrix is formed in float64 whatever the input: it squares the condition number, and with TF32 products training
    ended in NaN. Householder QR would be even stabler, but has no batched form on GPUs.
    """
    Q = P.double()
    for _ in range(2):
        lengths = torch.linalg.vector_norm(Q, dim=-2, keepdim=True)
        Q = Q / torch.where(lengths > 0, lengths, 1)
        gram = Q.mT @ Q
        gram.diagonal(dim1=-2, dim2=-1).add_(_SHIFT)
        R, info = torch.linalg.cholesky_ex(gram, upper=True)
        # Where the factorisation failed the normalised columns themselves still span the right space.
        solved = torch.linalg.solve_triangular(R, Q, upper=True, left=False)
        Q = torch.where((info == 0)[:, None, None] & solved.isfinite(), solved, Q)
    return Q.to(P.dtype)


def polar_factor(B: Tensor, smallest: float = 1e-3) -> Tensor:
    """(B B^T)^(-1/2) B: every singular value of B (b, k, m) replaced by 1, those below `smallest` of the largest by less.

    Newton-Schulz iteration x -> x (3 a - a^3 x^2) / 2, with the scale a that is best for singular values in [low, 1]
    (Chen & Chow 2014). It maps [0, 1] into itself, so the spectral norm of the result never exceeds 1: feasible by
    construction. It runs on the k x k Gram matrix in float64 and uses no eigensolver, hence no host sync.
    """
    k = B.shape[-2]
    scale = B.abs().amax((-2, -1), keepdim=True)  # so that squares of tiny gradients do not vanish
    X = (B / torch.where(scale > 0, scale, 1)).double()
    Y = X @ X.mT
    bound = Y.abs().sum(-1).amax(-1)[:, None, None]  # >= the largest eigenvalue
    Y = Y / torch.where(bound > 0, bound, 1)
    Q = torch.eye(k, dtype=Y.dtype, device=Y.device).expand_as(Y) / torch.where(bound > 0, bound, 1).sqrt()
    low = smallest / math.sqrt(k)  # the row-sum bound may exceed the largest eigenvalue by up to sqrt(k)
    identity = torch.eye(k, dtype=Y.dtype, device=Y.device)
    while low < 1 - 1e-6:  # known in advance: about 13 steps, whatever the data
        a = math.sqrt(3 / (1 + low + low * low))
        T = 1.5 * a * identity - 0.5 * a**3 * Y
        Q, Y = T @ Q, T @ Y @ T
        low = a * low * (3 - a * a * low * low) / 2
    return (Q @ X).to(B.dtype)


def svd(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return U, s, V^T of (..., n, m), by the default driver, else gesvd, else on the CPU; ValueError on NaN or inf."""
    U, s, Vh = _with_fallbacks(lambda x, **driver: torch.linalg.svd(x, full_matrices=False, **driver), matrix)
    return U, s, Vh


def singular_values(matrix: Tensor) -> Tensor:
    """Return the singular values of (..., n, m), with the same fallbacks."""
    (s,) = _with_fallbacks(lambda x, **driver: (torch.linalg.svdvals(x, **driver),), matrix)
    return s


def gram_vectors(wide: Tensor) -> tuple[Tensor, Tensor]:
    """Return left singular vectors (..., n, n) and values of wide matrices (..., n, m) in float64, largest first, from W W^T.

    Exact to 1e-8 of the largest singular value, and 30 times faster than a decomposition of W: for figures, diagnostics and cuts.
    """
    W = wide.double()
    if not bool(W.isfinite().all()):
        raise ValueError(f"a weight of shape {tuple(W.shape)} contains NaN or inf")
    squares, U = torch.linalg.eigh(W @ W.mT)
    return U.flip(-1), squares.flip(-1).clamp(min=0).sqrt()


def gram_values(matrix: Tensor) -> Tensor:
    """Return the singular values alone, of any (..., n, m), equally exact; NaN where the matrix holds NaN or inf."""
    W = matrix.double()
    gram = W @ W.mT if W.shape[-2] <= W.shape[-1] else W.mT @ W
    if not bool(gram.isfinite().all()):
        return gram.new_full(gram.shape[:-1], torch.nan)
    return torch.linalg.eigvalsh(gram).flip(-1).clamp(min=0).sqrt()


def _with_fallbacks(decompose: Callable[..., tuple[Tensor, ...]], matrix: Tensor) -> tuple[Tensor, ...]:
    if not bool(matrix.isfinite().all()):
        raise ValueError(
            f"singular values of a matrix with NaN or inf in it are undefined (shape {tuple(matrix.shape)})"
        )
    if matrix.dtype in HALF:  # no driver decomposes these
        return tuple(part.to(matrix) for part in _with_fallbacks(decompose, matrix.float()))
    try:
        return decompose(matrix)
    except torch.linalg.LinAlgError:
        pass  # divide and conquer fails to converge on rare matrices; the slower ways below do not
    if matrix.is_cuda:
        try:
            return decompose(matrix, driver="gesvd")
        except torch.linalg.LinAlgError:
            pass
    return tuple(part.to(matrix) for part in decompose(matrix.cpu().double()))
