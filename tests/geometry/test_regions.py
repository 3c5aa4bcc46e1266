"""Every region: oracle, norm, dual norm, diameter, projection, on every shape, with k at both ends and in between."""

from __future__ import annotations

import math
import types

import pytest
import torch

from catalog import CASES, IDS, gaussian, random_points
from sparsefw import geometry as geo
from sparsefw.geometry import Ball
from sparsefw.geometry.views import maximizer_rows

each = pytest.mark.parametrize(("shape", "region"), CASES, ids=IDS)


def as_trained(region: Ball) -> Ball:
    """With the warm-started oracle where the spectrum is the view: the list has the exact one."""
    if isinstance(region.view, geo.Spectrum):
        return Ball(geo.Spectrum(geo.WarmSubspace()), region.gauge, region.radius)
    return region


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
    region = as_trained(region)
    g = gaussian((2, *shape), 10)
    unit, warm = region.oracle(g, None, 300)
    again, _ = region.oracle(g, warm, 1)
    for vertex in (unit, again):
        gained = (vertex * g).flatten(1).sum(-1)
        torch.testing.assert_close(gained, region.dual_norm(g, stacked=True), rtol=1e-6, atol=1e-9)
        assert bool((region.norm(vertex, stacked=True) <= 1 + 1e-9).all())


@each
def test_oracle_is_one_graph_without_data_dependent_branches(shape, region):
    region = as_trained(region)
    g = gaussian((2, *shape), 11)
    torch._dynamo.reset()
    compiled = torch.compile(region.oracle, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(g, None, 2)[0], region.oracle(g, None, 2)[0])


@each
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_oracle_computes_half_precisions_in_float32(shape, region, dtype):
    g = gaussian((2, *shape), 12, dtype)
    for oracle in (region.oracle, as_trained(region).oracle):
        vertex, warm = oracle(g, None, 2)
        expected, expected_warm = oracle(g.float(), None, 2)
        assert vertex.dtype == dtype
        assert torch.equal(vertex, expected.to(dtype))
        assert warm is None or torch.equal(warm, expected_warm)


@each
def test_plain_values_and_back(shape, region):
    assert Ball.from_plain(region.plain()) == region


def test_every_region_is_in_the_catalog_of_tests():
    """A region that is missing in tests/catalog.py would be untested, and one that is missing in REGIONS would not be listed."""
    constructors = {
        name
        for name, value in vars(geo.regions).items()
        if isinstance(value, types.FunctionType) and not name.startswith("_") and name[0].isupper()
    }
    assert constructors == set(geo.REGIONS) - {"Simplex"}
    assert {region.name for _, region in CASES} >= constructors
    assert constructors <= set(geo.__all__)


@pytest.mark.parametrize("part", ["gauge", "view"])
def test_every_gauge_and_view_is_in_the_catalog_of_tests(part):
    base = {"gauge": geo.Gauge, "view": geo.View}[part]
    tested = {type(getattr(region, part)) for _, region in CASES}
    assert tested == set(base.__subclasses__())


@pytest.mark.parametrize(
    ("shape", "region"),
    [(shape, region) for shape, region in CASES if isinstance(region.view, geo.Groups) and region.view.rows],
    ids=str,
)
def test_maximizers_of_rows_are_the_same_without_being_built(shape, region):
    x = gaussian((2, *shape), 13)
    rows, factors = maximizer_rows(region.gauge, region.view.magnitudes(x))
    expected = region.view.maximizer(region.gauge, x)
    built = torch.zeros_like(x)
    for block, (chosen, scales) in enumerate(zip(rows, factors, strict=True)):
        assert len(chosen.unique()) == region.gauge.support(shape[0])
        built[block, chosen] = x[block, chosen] * scales.view(-1, *[1] * (len(shape) - 1))
    torch.testing.assert_close(built, expected)
