"""The spectral oracle without an SVD: orthonormality, rank deficiency, drift, fallbacks."""

from __future__ import annotations

import pytest
import torch

from catalog import gaussian
from sparsefw import geometry as geo
from sparsefw.geometry import subspace


def top_energy(G: torch.Tensor, k: int) -> torch.Tensor:
    return torch.linalg.svdvals(G)[..., :k].norm(dim=-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_orthonormal_columns_with_the_same_span(dtype):
    P = gaussian((3, 20, 6), 0, dtype) * torch.logspace(0, -4, 6)
    Q = subspace.orthonormal(P)
    eye = torch.eye(6, dtype=dtype).expand(3, 6, 6)
    torch.testing.assert_close(
        Q.mT @ Q, eye, rtol=0, atol=1e-6 if dtype == torch.float32 else 1e-11
    )  # the shift is 1e-12
    torch.testing.assert_close(Q @ (Q.mT @ P), P, rtol=1e-4, atol=1e-6)


def test_dependent_and_zero_columns_are_harmless():
    P = gaussian((1, 12, 5), 0)
    P[..., 3], P[..., 4] = P[..., 0], 0
    Q = subspace.orthonormal(P)
    assert bool(Q.isfinite().all())
    assert float(torch.linalg.matrix_norm(Q, 2)) <= 1 + 1e-6
    torch.testing.assert_close(Q @ (Q.mT @ P), P, rtol=1e-5, atol=1e-5)
    assert torch.equal(Q[..., 4], torch.zeros(1, 12, dtype=Q.dtype))


def test_subspace_converges_to_the_top_singular_space():
    G = gaussian((2, 10, 30), 1)
    (U, B), _ = subspace.top_subspace(G, subspace.start(G, 3), 200)
    torch.testing.assert_close(B.flatten(1).norm(dim=-1), top_energy(G, 3), rtol=1e-8, atol=0)
    torch.testing.assert_close(U.mT @ U, torch.eye(3, dtype=G.dtype).expand(2, 3, 3))


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_rank_deficient_gradients(rank):
    """Fewer directions than k: the vertex is exact, feasible and finite."""
    G = (gaussian((1, 8, rank), 0) @ gaussian((1, rank, 20), 1)).float()
    region = geo.SpectralKSupportBall(4, 2.0)
    unit, warm = region.oracle(G, None, 3)
    assert bool(unit.isfinite().all())
    assert bool(warm.isfinite().all())
    if rank:
        torch.testing.assert_close(unit[0], G[0] / G[0].norm(), rtol=1e-4, atol=1e-5)
    sparse, _ = geo.SpectralKSparse(4).oracle(G, None, 3)
    assert float(torch.linalg.matrix_norm(sparse[0], 2)) <= 1 + 1e-5
    assert float((sparse * G).sum()) == pytest.approx(float(torch.linalg.svdvals(G[0]).sum()), rel=1e-2, abs=1e-6)


def test_zero_gradient_keeps_the_warm_start():
    region = geo.SpectralKSupportBall(3)
    G = gaussian((1, 8, 20), 0, torch.float32)
    _, warm = region.oracle(G, None, 5)
    _, after = region.oracle(torch.zeros_like(G), warm, 1)
    assert torch.equal(after, warm)


def test_one_warm_iteration_follows_a_drifting_momentum():
    """A power-law signal that drifts, plus gradient noise as large as it, averaged by momentum 0.9: the regime of training."""
    generator = torch.Generator().manual_seed(0)
    noise = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    n, m, k = 64, 288, 6
    spectrum = torch.arange(1, n + 1).float() ** -0.8
    left, right = torch.linalg.qr(noise(n, n))[0], torch.linalg.qr(noise(m, n))[0]
    region, buffer, warm, qualities = geo.SpectralKSupportBall(k), torch.zeros(n, m), None, []
    for step in range(60):
        left, right = torch.linalg.qr(left + 0.005 * noise(n, n))[0], torch.linalg.qr(right + 0.005 * noise(m, n))[0]
        signal = (left * spectrum) @ right.T
        buffer = 0.9 * buffer + signal + noise(n, m) * float(signal.norm()) / (n * m) ** 0.5
        unit, warm = region.oracle(buffer[None], warm, 4 if step < 5 else 1)
        qualities.append(float((unit[0] * buffer).sum() / top_energy(buffer, k)))
    assert min(qualities) > 0.95
    assert sum(qualities) / len(qualities) > 0.985


@pytest.mark.parametrize("shape", [(4, 9), (9, 4), (1, 7), (30, 30)])
def test_polar_factor(shape):
    G = gaussian((2, *shape), 0)
    wide = G if shape[0] <= shape[1] else G.mT
    U, _, Vh = torch.linalg.svd(wide, full_matrices=False)
    polar = subspace.polar_factor(wide)
    torch.testing.assert_close(polar, U @ Vh, rtol=1e-3, atol=1e-3)
    assert float(torch.linalg.matrix_norm(polar, 2).max()) <= 1 + 1e-9


@pytest.mark.parametrize("scale", [1e-170, 1e170])
def test_polar_factor_where_squares_vanish_or_overflow_even_in_float64(scale):
    G = gaussian((1, 4, 9), 0)
    torch.testing.assert_close(subspace.polar_factor(G * scale), subspace.polar_factor(G))


def test_start_depends_on_the_shape_alone():
    a, b = torch.zeros(2, 5, 9), torch.ones(3, 5, 9)
    torch.manual_seed(1)
    first = subspace.start(a, 4)
    torch.manual_seed(2)
    assert torch.equal(first[0], subspace.start(b, 4)[2])


def test_svd_falls_back_and_returns_the_transposed_factor(monkeypatch):
    """Where the first driver fails the second must give U, s, V^T too (a published fallback gave V)."""
    G = gaussian((5, 7), 0)
    original, calls = torch.linalg.svd, []

    def failing(matrix, **options):
        calls.append(options)
        if len(calls) == 1:
            raise torch.linalg.LinAlgError("did not converge")
        return original(matrix, **options)

    monkeypatch.setattr(torch.linalg, "svd", failing)
    U, s, Vh = subspace.svd(G)
    assert len(calls) == 2
    torch.testing.assert_close((U * s) @ Vh, G)


def test_svd_refuses_nan():
    G = torch.full((3, 3), float("nan"))
    with pytest.raises(ValueError, match="NaN or inf"):
        subspace.svd(G)
    with pytest.raises(ValueError, match="NaN or inf"):
        geo.SpectralKSupportBall(1).norm(G)


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (2, 4, 6), (1, 1)])
def test_the_gram_matrix_has_the_singular_values_and_left_vectors(shape):
    matrix = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    exact = torch.linalg.svdvals(matrix)
    torch.testing.assert_close(subspace.gram_values(matrix), exact)
    wide = matrix if shape[-2] <= shape[-1] else matrix.mT
    U, s = subspace.gram_vectors(wide)
    torch.testing.assert_close(s, exact)
    torch.testing.assert_close((U.mT @ wide).norm(dim=-1), exact)
    assert subspace.gram_values(torch.full((2, 3), torch.nan)).isnan().all()
