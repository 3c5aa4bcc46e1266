"""Every region: oracle, norm, dual norm, diameter, projection, on every shape, with k at both ends and in between."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from catalog import CASES, IDS, gaussian, random_points, regions
from sparsefw import geometry as geo
from sparsefw.geometry import Ball

each = pytest.mark.parametrize(("shape", "region"), CASES, ids=IDS)


@each
def test_vertex_attains_the_dual_norm_and_lies_on_the_boundary(shape, region):
    for seed in range(5):
        g = gaussian(shape, seed)
        v = region.lmo(g)
        assert v.shape == g.shape
        assert float((v * g).sum()) == pytest.approx(-region.radius * float(region.dual_norm(g)), rel=1e-10)
        assert float(region.norm(v)) == pytest.approx(region.radius, rel=1e-10)


@each
def test_no_feasible_point_is_better_than_the_vertex(shape, region):
    points = random_points(region, shape, 200)
    g = gaussian(shape, 3)
    assert bool(region.contains(points, stacked=True, tolerance=1e-10).all())
    best = float((region.lmo(g) * g).sum())
    assert float((points * g).flatten(1).sum(-1).min()) >= best - 1e-9


@each
def test_duality_and_norm_axioms(shape, region):
    x, y, g = (gaussian(shape, seed) for seed in (1, 2, 3))
    norm = lambda z: float(region.norm(z))  # noqa: E731
    assert abs(float((x * g).sum())) <= norm(x) * float(region.dual_norm(g)) * (1 + 1e-12)
    assert norm(x + y) <= norm(x) + norm(y) + 1e-12
    assert norm(-2.5 * x) == pytest.approx(2.5 * norm(x), rel=1e-12)
    assert norm(torch.zeros_like(x)) == 0
    assert norm(x) <= region.gauge.widest(region.count(shape)) * float(x.norm()) * (1 + 1e-12)


@each
def test_diameter_is_reached_and_never_exceeded(shape, region):
    diameter = region.diameter(shape)
    vertices = region.lmo(gaussian((50, *shape), 5), stacked=True)
    longest = 2 * float(vertices.flatten(1).norm(dim=-1).max())
    assert longest <= diameter * (1 + 1e-10)
    # General p has its longest point at a corner or on an axis, which a random gradient does not hit.
    extreme = region.lmo(torch.ones(shape, dtype=torch.float64)) if region.gauge == geo.Lp(3.0) else None
    if region.gauge == geo.Lp(1.4):
        extreme = region.lmo(torch.eye(1, math.prod(shape), dtype=torch.float64).view(shape))
    longest = longest if extreme is None else 2 * float(extreme.norm())
    assert longest == pytest.approx(diameter, rel=1e-9)
    points = random_points(region, shape, 50)
    assert float(torch.cdist(points.flatten(1), points.flatten(1)).max()) <= diameter * (1 + 1e-10)
    assert region.with_diameter(3.25, shape).diameter(shape) == pytest.approx(3.25)


@each
def test_projection_solves_the_variational_inequality(shape, region):
    """x = P(w) iff x is feasible and <w - x, u - x> <= 0 for all feasible u, i.e. r dual(w - x) <= <w - x, x>."""
    previous = None
    for seed, scale in enumerate((0.01, 1.0, 5.0, 100.0)):
        w = gaussian(shape, seed) * scale
        x = region.project(w)
        assert float(region.norm(x)) <= region.radius * (1 + 1e-9)
        normal = w - x
        assert region.radius * float(region.dual_norm(normal)) <= float((normal * x).sum()) + 1e-8 * scale
        torch.testing.assert_close(region.project(x), x, rtol=0, atol=1e-9)
        if previous is not None:
            assert float((x - previous[1]).norm()) <= float((w - previous[0]).norm()) * (1 + 1e-9)
        previous = (w, x)
        if float(region.norm(w)) <= region.radius:
            assert torch.equal(x, w)


@each
def test_pull_inside_scales_only_what_is_outside(shape, region):
    x = gaussian(shape, 0)
    small, large = x * (0.5 * region.radius / float(region.norm(x))), x * (7 * region.radius / float(region.norm(x)))
    assert torch.equal(region.pull_inside(small), small)
    torch.testing.assert_close(region.pull_inside(large), large / 7)
    assert bool(region.contains(small))
    assert not bool(region.contains(large))


@each
def test_gap_is_zero_at_the_vertex_and_positive_elsewhere(shape, region):
    g, x = gaussian(shape, 1), region.pull_inside(gaussian(shape, 2)) / 2
    assert float(region.gap(region.lmo(g), g)) == pytest.approx(0, abs=1e-9)
    assert float(region.gap(x, g)) > 0
    best = max(float(((x - u) * g).sum()) for u in random_points(region, shape, 50))
    assert best <= float(region.gap(x, g)) + 1e-9


@each
def test_zero_gradient_gives_the_zero_vertex(shape, region):
    zero = torch.zeros(shape, dtype=torch.float64)
    assert torch.equal(region.lmo(zero), zero)
    assert float(region.dual_norm(zero)) == 0
    vertex, _ = region.oracle(zero.unsqueeze(0), None, 2)
    assert torch.equal(vertex[0].abs(), zero)


@each
def test_other_dtypes_agree_with_float64(shape, region):
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 2e-2), (torch.float16, 3e-3)):
        g = gaussian(shape, 4, dtype)
        v = region.lmo(g)
        assert v.dtype == dtype
        exact = region.lmo(g.double())
        gained, best = float((v.double() * g.double()).sum()), float((exact * g.double()).sum())
        assert gained == pytest.approx(best, rel=tolerance)
        assert float(region.norm(g)) == pytest.approx(float(region.norm(g.double())), rel=tolerance)


@each
def test_tiny_and_huge_gradients_in_float32(shape, region):
    g = gaussian(shape, 6)
    for scale in (1e-30, 1e-12, 1e30):
        v = region.lmo((g * scale).float()).double()
        assert float((v * g).sum()) == pytest.approx(float((region.lmo(g) * g).sum()), rel=1e-4)
        assert float(region.dual_norm((g * scale).float())) == pytest.approx(
            scale * float(region.dual_norm(g)), rel=1e-4
        )


@each
def test_nan_is_not_swallowed(shape, region):
    g = gaussian(shape, 7)
    g.view(-1)[0] = math.nan
    if isinstance(region.view, geo.Spectrum):
        with pytest.raises(ValueError, match="NaN or inf"):
            region.lmo(g)
    else:
        assert bool(region.lmo(g).isnan().any())


@each
def test_memory_layout_does_not_matter(shape, region):
    g = gaussian(shape, 8)
    strided = torch.empty(*shape[:-1], 2 * shape[-1], dtype=g.dtype)[..., ::2].copy_(g)
    torch.testing.assert_close(region.lmo(strided), region.lmo(g), rtol=1e-12, atol=1e-12)
    if len(shape) == 4:
        last = g.to(memory_format=torch.channels_last)
        torch.testing.assert_close(region.lmo(last), region.lmo(g), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(region.norm(last), region.norm(g))


@each
def test_a_stack_is_its_members(shape, region):
    stack = gaussian((3, *shape), 9)
    for method in (region.lmo, region.norm, region.dual_norm, region.project, region.pull_inside, region.contains):
        together = method(stack, stacked=True)
        alone = torch.stack([method(x) for x in stack])
        torch.testing.assert_close(together, alone, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(
        region.gap(stack, stack, stacked=True), torch.stack([region.gap(x, x) for x in stack]), rtol=1e-10, atol=1e-12
    )


@each
def test_oracle_of_training_agrees_with_the_exact_one(shape, region):
    """On a fixed gradient the warm-started iteration converges to the exact vertex."""
    if isinstance(region.view, geo.Spectrum):
        region = Ball(geo.Spectrum(geo.WarmSubspace()), region.gauge, region.radius)
    g = gaussian((2, *shape), 10)
    unit, warm = region.oracle(g, None, 300)
    again, _ = region.oracle(g, warm, 1)
    for vertex in (unit, again):
        gained = (vertex * g).flatten(1).sum(-1)
        torch.testing.assert_close(gained, region.dual_norm(g, stacked=True), rtol=1e-6, atol=1e-9)
        assert bool((region.norm(vertex, stacked=True) <= 1 + 1e-9).all())


@each
def test_oracle_is_one_graph_without_data_dependent_branches(shape, region):
    if isinstance(region.view, geo.Spectrum):
        if region.gauge.tip is geo.gauges.Tip.CURVED:
            pytest.skip("curved gauges of a spectrum need a full SVD")
        region = Ball(geo.Spectrum(geo.WarmSubspace()), region.gauge, region.radius)
    g = gaussian((2, *shape), 11)
    torch._dynamo.reset()
    compiled = torch.compile(region.oracle, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(g, None, 2)[0], region.oracle(g, None, 2)[0])


@each
def test_plain_values_and_back(shape, region):
    assert Ball.from_plain(region.plain()) == region


# ------------------------------------------------------------------- against brute force and independent solvers


def supports(n: int, k: int):
    return (list(s) for s in itertools.combinations(range(n), k))


vectors = st.lists(st.sampled_from([0.0, 0.5, -0.5, 1.0, -1.0, 2.0, -3.0, 0.1]), min_size=1, max_size=7)


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


@pytest.mark.parametrize("seed", range(4))
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


# ------------------------------------------------------------------------------------------ limits and symmetries


def same(a: Ball, b: Ball, shape: tuple[int, ...]) -> None:
    for seed in range(3):
        x = gaussian(shape, seed)
        torch.testing.assert_close(a.norm(x), b.norm(x), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(a.dual_norm(x), b.dual_norm(x), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(a.lmo(x), b.lmo(x), rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(a.project(5 * x), b.project(5 * x), rtol=1e-7, atol=1e-8)
    assert a.diameter(shape) == pytest.approx(b.diameter(shape))


def test_limits():
    shape = (4, 6)
    same(geo.KSupportBall(1), geo.LpBall(1), shape)
    same(geo.KSupportBall(24), geo.LpBall(2), shape)
    same(geo.KSparsePolytope(1), geo.LpBall(1), shape)
    same(geo.KSparsePolytope(24), geo.LpBall(math.inf), shape)
    same(geo.SpectralKSupportBall(1), geo.NuclearBall(), shape)
    same(geo.SpectralKSupportBall(4), geo.LpBall(2), shape)
    same(geo.SpectralKSparse(1), geo.NuclearBall(), shape)
    same(geo.SpectralKSparse(4), geo.SpectralBall(), shape)
    same(geo.GroupKSupportBall(3, labels=torch.arange(24)), geo.KSupportBall(3), shape)
    same(geo.GroupKSupportBall(1, labels=torch.zeros(24, dtype=torch.long)), geo.LpBall(2), shape)
    same(geo.GroupKSupportBall(1), geo.GroupLassoBall(), shape)
    same(geo.NMBall(6, 6), geo.LpBall(2), shape)
    same(geo.NMBall(2, 6), geo.KSupportBall(2), (1, 6))
    same(geo.LpBall(2.0), geo.LpBall(2), shape)


@pytest.mark.parametrize(
    "make", [geo.KSupportBall, geo.KSparsePolytope, geo.GroupKSupportBall, geo.SpectralKSupportBall]
)
def test_norm_falls_and_dual_norm_rises_with_k(make):
    x = gaussian((5, 7), 0)
    norms = [float(make(k).norm(x)) for k in range(1, 6)]
    duals = [float(make(k).dual_norm(x)) for k in range(1, 6)]
    assert norms == sorted(norms, reverse=True)
    assert duals == sorted(duals)


def test_equivariance():
    x = gaussian((6, 6), 0)
    rows, columns = torch.randperm(6), torch.randperm(6)
    signs = torch.sign(gaussian((6, 6), 1))
    Q, R = torch.linalg.qr(gaussian((6, 6), 2))[0], torch.linalg.qr(gaussian((6, 6), 3))[0]
    for region in regions((6, 6)):
        if isinstance(region.view, geo.Elements) and region.view.axis is None:
            moved, expected = x[rows][:, columns] * signs, region.lmo(x)[rows][:, columns] * signs
        elif isinstance(region.view, geo.Groups) and region.view.partition is None:
            moved, expected = x[rows][:, columns], region.lmo(x)[rows][:, columns]
        elif isinstance(region.view, geo.Spectrum):
            moved, expected = Q @ x @ R, Q @ region.lmo(x) @ R
        else:
            continue
        torch.testing.assert_close(region.lmo(moved), expected, rtol=1e-8, atol=1e-9)


# ------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: geo.KSupportBall(0), "k must be a whole number"),
        (lambda: geo.KSupportBall(0.2), "k must be a whole number"),
        (lambda: geo.KSparsePolytope(True), "k must be a whole number"),
        (lambda: geo.LpBall(0.5), "p must be at least 1"),
        (lambda: geo.LpBall(math.nan), "p must be at least 1"),
        (lambda: geo.NMBall(3, 2), "N <= M"),
        (lambda: geo.LpBall(2, radius=0.0), "positive, finite"),
        (lambda: geo.LpBall(2, radius=math.nan), "positive, finite"),
        (lambda: geo.GroupKSupportBall(9).lmo(torch.ones(4, 2)), "k=9 is more than the 4 magnitudes"),
        (lambda: geo.GroupKSupportBall(1, labels=[0, 2]), "without gaps"),
        (lambda: geo.GroupKSupportBall(1, labels=[0, 1]).lmo(torch.ones(3)), "labels 2 entries, the tensor has 3"),
        (lambda: geo.GroupKSupportBall(1, axis=2).lmo(torch.ones(3, 3)), "axis 2 does not exist"),
        (lambda: geo.GroupKSupportBall(1, axis=1, labels=[0]), "not by both"),
        (lambda: geo.WarmSubspace(iterations=0), "at least one iteration"),
        (lambda: geo.SpectralBall(solver="exact"), "solver must be ExactSVD"),
        (lambda: geo.LpBall("inf"), "p must be at least 1"),
        (lambda: geo.KSupportBall(3, "2"), "positive, finite"),
        (lambda: geo.KSupportBall(1).lmo(torch.tensor(1.0)), "a scalar has no magnitudes"),
        (lambda: Ball(geo.Groups(), geo.NM(2, 4)), "use NMBall"),
        (lambda: Ball.from_plain({"view": {"type": "os.system"}, "gauge": {}, "radius": 1}), "unknown part"),
    ],
)
def test_bad_input_is_one_clear_line(make, message):
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_integer_tensors_are_refused():
    with pytest.raises(TypeError, match="real floating-point"):
        geo.LpBall(2).lmo(torch.ones(3, dtype=torch.int64))
