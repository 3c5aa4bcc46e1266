"""Vertices, norms and projections against enumeration, numbers by hand, numpy and the general solvers of scipy."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from catalog import gaussian, regions
from sparsefw import geometry as geo

vectors = st.lists(st.sampled_from([0.0, 0.5, -0.5, 1.0, -1.0, 2.0, -3.0, 0.1]), min_size=1, max_size=7)


def supports(n: int, k: int):
    return (list(s) for s in itertools.combinations(range(n), k))


@given(vectors, st.data())
@settings(max_examples=200, deadline=None)
def test_k_support_and_k_sparse_vertices_by_enumeration(values, data):
    g = torch.tensor(values, dtype=torch.float64)
    k = data.draw(st.integers(1, len(values)))
    by_length = max(float(g[s].norm()) for s in supports(len(values), k))
    by_sum = max(float(g[s].abs().sum()) for s in supports(len(values), k))
    for region, best in ((geo.KSupportBall(k, 2.0), by_length), (geo.KSparsePolytope(k, 2.0), by_sum)):
        v = region.lmo(g)
        assert float((v * g).sum()) == pytest.approx(-2 * best, abs=1e-12)
        assert int((v != 0).sum()) == min(k, int((g != 0).sum()))


@given(st.integers(1, 5), st.integers(1, 4), st.data())
@settings(max_examples=100, deadline=None)
def test_group_vertices_by_enumeration(rows, columns, data):
    k = data.draw(st.integers(1, rows))
    entries = st.sampled_from([0.0, 1.0, -1.0, 0.3])
    g = torch.tensor(data.draw(st.lists(entries, min_size=rows * columns, max_size=rows * columns))).double()
    g = g.view(rows, columns)
    v = geo.GroupKSupportBall(k, 2.0).lmo(g)
    best = max(float(g[s].norm()) for s in supports(rows, k))
    assert float((v * g).sum()) == pytest.approx(-2 * best, abs=1e-12)
    assert int((v.norm(dim=1) > 0).sum()) == min(k, int((g.norm(dim=1) > 0).sum()))
    transposed = geo.GroupKSupportBall(k, 2.0, axis=1).lmo(g.T)
    labelled = geo.GroupKSupportBall(k, 2.0, labels=torch.arange(rows).repeat_interleave(columns)).lmo(g)
    torch.testing.assert_close(transposed.T, v)
    torch.testing.assert_close(labelled, v)


def test_n_m_vertices_by_enumeration():
    """Blocks of 4 run along the input channels, at each filter and kernel position; 6 channels leave a block of 2."""
    g = gaussian((2, 6, 3), 0)
    v = geo.NMBall(2, 4, 1.0).lmo(g)
    expected = torch.zeros_like(g)
    for n in range(2):
        for d in range(3):
            for block in (range(0, 4), range(4, 6)):
                for c in sorted(block, key=lambda c: -abs(float(g[n, c, d])))[:2]:
                    expected[n, c, d] = g[n, c, d]
    torch.testing.assert_close(v, -expected / expected.norm())


def test_spectral_vertices_by_numpy():
    g = gaussian((5, 8), 1)
    U, s, Vt = np.linalg.svd(g.numpy(), full_matrices=False)
    k_svd = (U[:, :2] * s[:2]) @ Vt[:2]
    expected = {
        geo.SpectralKSupportBall(2, 1.5): k_svd / np.linalg.norm(s[:2]),
        geo.SpectralKSparse(2, 1.5): U[:, :2] @ Vt[:2],
        geo.NuclearBall(1.5): np.outer(U[:, 0], Vt[0]),
        geo.SpectralBall(1.5): U @ Vt,
    }
    for region, unit in expected.items():
        np.testing.assert_allclose(region.lmo(g).numpy(), -1.5 * unit, atol=1e-12)


def test_ties_give_exactly_k():
    ones = torch.ones(6, 4, dtype=torch.float64)
    for k in range(1, 7):
        assert int((geo.GroupKSupportBall(k).lmo(ones).norm(dim=1) > 0).sum()) == k
        assert int((geo.KSupportBall(k).lmo(ones) != 0).sum()) == k
        assert int((geo.KSparsePolytope(k).lmo(ones) != 0).sum()) == k
        assert torch.linalg.matrix_rank(geo.SpectralKSupportBall(min(k, 4)).lmo(torch.eye(6, 4).double())) == min(k, 4)
    assert int((geo.LpBall(1).lmo(ones) != 0).sum()) == 1
    assert int((geo.NMBall(2, 4).lmo(ones) != 0).sum()) == 12


def test_k_support_norm_by_hand():
    x = torch.tensor([3.0, -4.0, 0.0], dtype=torch.float64)
    assert float(geo.KSupportBall(1).norm(x)) == pytest.approx(7.0)
    assert float(geo.KSupportBall(2).norm(x)) == pytest.approx(5.0)
    assert float(geo.KSupportBall(3).norm(x)) == pytest.approx(5.0)
    # All equal: every subset is as good, and the norm is sum / sqrt(k).
    assert float(geo.KSupportBall(2).norm(torch.ones(3, dtype=torch.float64))) == pytest.approx(3 / math.sqrt(2))
    # One dominant entry stays alone, the others are averaged over the remaining budget: 10^2 + (1 + 1 + 1)^2 / 1.
    y = torch.tensor([10.0, 1.0, 1.0, 1.0], dtype=torch.float64)
    assert float(geo.KSupportBall(2).norm(y)) == pytest.approx(math.sqrt(109))


@given(vectors, st.data())
@settings(max_examples=100, deadline=None)
def test_k_support_norm_against_its_variational_form(values, data):
    """norm^2 = min sum x_i^2 / t_i over 0 <= t_i <= 1, sum t_i <= k; t_i = min(1, c |x_i|), c found by scipy."""
    k = data.draw(st.integers(1, len(values)))
    x = np.abs(np.array(values))
    x = x[x > 0]
    if len(x) <= k:
        expected = float(np.linalg.norm(x))
    else:
        c = optimize.brentq(lambda c: np.minimum(1, c * x).sum() - k, 1e-9, 1 / x.min() + 1, xtol=1e-15)
        expected = math.sqrt(float((x**2 / np.minimum(1, c * x)).sum()))
    assert float(geo.KSupportBall(k).norm(torch.tensor(values, dtype=torch.float64))) == pytest.approx(
        expected, rel=1e-9
    )


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))])
def test_projections_against_a_general_solver(seed):
    """Frank-Wolfe regions of a vector are hulls of their vertices; SLSQP minimises the distance over the norm constraint."""
    w = gaussian((5,), seed) * 3
    for region in regions((5,)):
        if not isinstance(region.view, geo.Elements) or region.gauge.__class__.__name__ == "NM":
            continue
        norm = lambda x, region=region: float(region.norm(torch.from_numpy(np.asarray(x, dtype=np.float64))))  # noqa: E731
        start = region.pull_inside(w).numpy() * 0.9
        solved = optimize.minimize(
            lambda x: 0.5 * ((x - w.numpy()) ** 2).sum(),
            start,
            jac=lambda x: x - w.numpy(),
            constraints={"type": "ineq", "fun": lambda x: region.radius - norm(x)},  # noqa: B023
            method="SLSQP",
            options={"maxiter": 500, "ftol": 1e-14},
        )
        ours = region.project(w).numpy()
        assert np.linalg.norm(ours - w.numpy()) <= np.linalg.norm(solved.x - w.numpy()) + 1e-6, region


def test_simplex():
    simplex = geo.Simplex(2.0)
    g = torch.tensor([0.3, -1.0, 5.0], dtype=torch.float64)
    assert simplex.lmo(g).tolist() == [0.0, 2.0, 0.0]
    assert int((simplex.lmo(torch.zeros(4)) != 0).sum()) == 1
    for seed in range(5):
        w = gaussian((6,), seed) * 4
        x = simplex.project(w)
        assert bool(simplex.contains(x))
        vertex = simplex.lmo(-(w - x))
        assert float(((w - x) * (vertex - x)).sum()) <= 1e-9
        solved = optimize.minimize(
            lambda y: ((y - w.numpy()) ** 2).sum(),  # noqa: B023
            np.full(6, 2 / 6),
            bounds=[(0, None)] * 6,
            constraints={"type": "eq", "fun": lambda y: y.sum() - 2},
        )
        np.testing.assert_allclose(x.numpy(), solved.x, atol=1e-5)
    assert not bool(simplex.contains(torch.tensor([3.0, -1.0])))
