"""Eigenvectors followed without a decomposition: they arrive from anywhere, follow what drifts, and stay orthonormal."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sparsefw.geometry.eigenbasis import turned


def gram(n: int, m: int, decay: float = 0.0, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    mixed = torch.randn(n, n, generator=draw, dtype=torch.float64)
    W = mixed @ torch.diag(torch.arange(1.0, n + 1, dtype=torch.float64) ** -decay) @ torch.randn(
        n, m, generator=draw, dtype=torch.float64
    )  # fmt: skip
    return W @ W.mT


def lost(basis: Tensor, quotients: Tensor, G: Tensor, k: int) -> float:
    """The share of the k largest eigenvalues' sum that k columns of the basis miss."""
    leading = basis[:, quotients.argsort(descending=True)[:k]]
    best = torch.linalg.eigvalsh(G)[-k:].sum()
    return float(1 - (leading.mT @ G @ leading).trace() / best)


def assert_orthonormal(basis: Tensor) -> None:
    identity = torch.eye(basis.shape[-1], dtype=basis.dtype).expand_as(basis)
    torch.testing.assert_close(basis.mT @ basis, identity, rtol=0, atol=2e-6)


def test_two_axes_turn_as_by_hand():
    """The eigenvectors of [[2, 1], [1, 2]] lie at 45 degrees: 1 along (1, -1), 3 along (1, 1)."""
    G, V = torch.tensor([[2.0, 1.0], [1.0, 2.0]], dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    for _ in range(6):
        V, quotients = turned(V, G)
    torch.testing.assert_close(quotients.sort()[0], torch.tensor([1.0, 3.0], dtype=torch.float64))
    torch.testing.assert_close(V.abs(), torch.full((2, 2), 0.5**0.5, dtype=torch.float64))


@pytest.mark.parametrize(
    "G",
    [
        gram(64, 576),
        gram(48, 300, decay=1.5),
        gram(40, 8),  # of rank 8
        gram(1, 5),
        gram(2, 1),
        torch.eye(16, dtype=torch.float64) * 3,
        torch.diag(torch.tensor([5.0, 5, 5, 1, 1, 0, 0, 0], dtype=torch.float64)),
    ],
    ids=["gaussian", "decaying", "rank-deficient", "1 x 1", "2 x 2", "all equal", "ties"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_from_any_basis_a_hundred_turns_lead_to_the_eigenvectors(G, dtype):
    n = len(G)
    mixed = torch.randn(n, n, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    V = torch.linalg.qr(mixed)[0].to(dtype)
    for _ in range(100):
        V, quotients = turned(V, G.to(dtype))
        assert_orthonormal(V)
    for k in {1, max(1, n // 4), n}:
        assert abs(lost(V.double(), quotients.double(), G, k)) < 1e-4


def test_the_error_is_squared_where_it_is_small():
    G = gram(24, 100, decay=1.0)
    exact = torch.linalg.eigh(G)[1]
    draw = torch.randn(24, 24, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    V = exact @ torch.linalg.matrix_exp(1e-6 * (draw - draw.mT))

    def error(V: Tensor) -> float:
        A = V.mT @ G @ V
        return float((A - torch.diag(A.diagonal())).norm() / A.norm())

    assert error(turned(V, G)[0]) < 1e-3 * error(V)


def test_a_matrix_that_drifts_is_followed():
    """A hundredth of what the matrix holds is new in every step: one turn keeps 99.5 % of the best, of any size."""
    draw = torch.Generator().manual_seed(0)
    W = torch.randn(32, 200, generator=draw)
    V = torch.linalg.eigh(W @ W.mT)[1]
    for _ in range(100):
        W = 0.995 * W + 0.1 * torch.randn(32, 200, generator=draw)
        V, _ = turned(V, W @ W.mT)
        now = ((W @ W.mT) @ V * V).sum(0)
        for k in (2, 8, 16):
            assert lost(V, now, W @ W.mT, k) < 5e-3


@pytest.mark.parametrize("bad", [0.0, torch.nan, torch.inf])
def test_where_there_is_nothing_to_follow_the_basis_stays(bad):
    """Beside it, another matrix of the stack is followed."""
    stack = torch.stack([torch.full((4, 4), bad), gram(4, 9).float()])
    V = torch.eye(4).expand(2, 4, 4)
    after, _ = turned(V, stack)
    assert torch.equal(after[0], V[0])
    assert not torch.allclose(after[1], V[1])
    assert_orthonormal(after)
