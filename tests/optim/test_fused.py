"""The fused step against its plain twin: every rule, view and gauge, sizes, and gradients at the edges."""

from __future__ import annotations

import math

import pytest
import torch

from catalog import RULES, gaussian
from optim.twins import DIRECTIONS, ENTRIES, EXACT, FLAT, ROUNDED, ROWS, assert_equal, fused_and_plain
from sparsefw import geometry as geo

SHAPES = [(6, 3, 2, 2), (5, 7), (12, 3, 3, 3), (12, 3, 3, 3)]


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("make", [ROWS, ENTRIES, FLAT, pytest.param(DIRECTIONS, marks=pytest.mark.slow)])
def test_every_rule_on_every_view(make, rule):
    runs = fused_and_plain(
        SHAPES, lambda ps: [{"params": [p], "region": make(2, 1.0 + i)} for i, p in enumerate(ps)], rescale=rule
    )
    assert_equal(runs, ROUNDED if make is DIRECTIONS else EXACT)


@pytest.mark.parametrize("make", [ROWS, ENTRIES, FLAT, DIRECTIONS])
@pytest.mark.parametrize("k", [1, 4, 5])
def test_k_at_both_ends(make, k):
    """Rank 5 of a 5 x 7 matrix needs no subspace: that group is left to the plain step."""
    runs = fused_and_plain([(5, 7)], lambda ps: [{"params": ps, "region": make(k, 2.0)}])
    assert_equal(runs, ROUNDED if make is DIRECTIONS else EXACT, covered=() if make is DIRECTIONS and k == 5 else None)


@pytest.mark.parametrize(
    "region",
    [geo.LpBall(2, 1.5), geo.LpBall(1, 1.5), geo.LpBall(math.inf, 0.5), geo.GroupLassoBall(1.5), geo.NuclearBall(1.5)],
)
def test_other_gauges_whose_vertices_are_the_largest_magnitudes(region):
    spectral = isinstance(region.view, geo.Spectrum)
    assert_equal(
        fused_and_plain([(5, 7)], lambda ps: [{"params": ps, "region": region}]), ROUNDED if spectral else EXACT
    )


@pytest.mark.parametrize(
    "region",
    [geo.SpectralKSparse(3, 1.5), geo.NMBall(2, 4, 1.5), geo.GroupKSupportBall(2, axis=1), geo.SpectralBall(1.5)],
)
def test_what_no_kernel_can_do_takes_its_plain_step_beside_fused_ones(region):
    runs = fused_and_plain(
        [(5, 8), (5, 8)], lambda ps: [{"params": ps[:1], "region": region}, {"params": ps[1:], "region": ROWS(2)}]
    )
    assert_equal(runs, covered=[1])


@pytest.mark.slow
def test_layers_of_every_size_in_one_launch():
    """More entries than a piece has, lengths that are no multiple of four, channels_last, a single row, a single column."""
    shapes = [(70, 131), (8, 16, 3, 3), (1, 9), (9, 1), (33, 4, 1, 1)]

    def groups(ps, make):
        ps[1].data = ps[1].data.contiguous(memory_format=torch.channels_last)
        return [{"params": [p], "region": make(max(1, min(p.shape[0], p[0].numel()) // 3), 1.0)} for p in ps]

    def gradient(shape, seed):
        g = gaussian(shape, seed)
        return g.contiguous(memory_format=torch.channels_last) if shape == (8, 16, 3, 3) else g

    for make in (ROWS, ENTRIES, FLAT):
        assert_equal(fused_and_plain(shapes, lambda ps, make=make: groups(ps, make), gradient, steps=3))
    # Of one row or one column all rank there is may grow.
    assert_equal(
        fused_and_plain(shapes, lambda ps: groups(ps, DIRECTIONS), gradient, steps=3), ROUNDED, covered=[0, 1, 4]
    )


@pytest.mark.slow
def test_an_oracle_of_more_directions_than_one_tile_has():
    runs = fused_and_plain(
        [(68, 90), (90, 67)], lambda ps: [{"params": [p], "region": DIRECTIONS(66, 3.0)} for p in ps], steps=2
    )
    assert_equal(runs, ROUNDED)


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "k"), [((5, 7), 1), ((7, 5), 3), ((21, 13), 3), ((5, 7), 3)])
def test_blocks_of_one_stack(shape, k):
    """Also their warm starts, where numbers of entries are no multiple of four."""
    runs = fused_and_plain([shape] * 3, lambda ps: [{"params": ps, "region": DIRECTIONS(k, 3.0)}])
    assert_equal(runs, ROUNDED)
    for p, q in zip(runs[0][0], runs[1][0], strict=True):
        spans = (torch.linalg.qr(run.state[x]["warm"].double())[0] for run, x in ((runs[0][1], p), (runs[1][1], q)))
        assert float(torch.linalg.svdvals(next(spans).mT @ next(spans)).min()) > 0.98


def wide_gap(shape, seed):
    """One direction fifty times as long as the others."""
    U, _, Vh = torch.linalg.svd(gaussian(shape, seed), full_matrices=False)
    return (U * torch.tensor([1.0] + [0.02] * (min(shape) - 1))) @ Vh


def test_small_directions_beside_a_large_one():
    runs = fused_and_plain([(64, 70)], lambda ps: [{"params": ps, "region": DIRECTIONS(15, 3.0)}], wide_gap, steps=3)
    assert runs[0][1].diagnostics()[0].norm <= 1 + 1e-5
    assert runs[0][1].oracle_quality() == pytest.approx(runs[1][1].oracle_quality(), abs=max(ROUNDED, 1e-3))


def low_rank(shape, seed):
    return gaussian((shape[0], 1), seed) @ gaussian((1, shape[1]), seed + 1)


def test_gradients_of_lower_rank_than_k():
    runs = fused_and_plain(
        [(8, 12)], lambda ps: [{"params": ps, "region": DIRECTIONS(3, 3.0)}], low_rank, steps=2, momentum=0.0
    )
    assert all(torch.isfinite(p).all() for p in runs[0][0])
    assert runs[0][1].diagnostics()[0].quality == pytest.approx(1, abs=1e-3)


def test_a_step_with_nan_changes_nothing_and_is_counted():
    def gradient(shape, seed):
        g = gaussian(shape, seed)
        if seed == 601:
            g.view(-1)[2] = float("nan")
        return g

    def groups(ps):
        regions = (ROWS(2), ENTRIES(5), DIRECTIONS(2))
        named = [{"params": [(f"w{i}", ps[i])], "region": region} for i, region in enumerate(regions)]
        return [*named, {"params": [("rest", ps[3])], "region": None}]

    # Not in the first steps, which are more careful: the host does not know that one of them was in vain.
    runs = fused_and_plain([(6, 9)] * 4, groups, gradient, steps=8)
    assert_equal(runs, ROUNDED)
    assert runs[0][1].nonfinite_counts() == {"w1": 1}


@pytest.mark.parametrize(
    "options", [{}, {"weight_decay": 0.1}, {"nesterov": True, "weight_decay": 0.1}, {"momentum": 0.0}]
)
def test_the_rest_by_sgd(options):
    assert_equal(fused_and_plain([(6, 9), (5,), (2500,)], lambda ps: [{"params": ps, "region": None}], **options))


def test_coupled_tensors_are_one_block():
    """Fused where all rows are stretches of memory; the columns of a third tensor are none."""
    runs = fused_and_plain(
        [(8, 3, 3, 3), (8,), (5, 8, 1, 1)],
        lambda ps: [{"params": ps, "region": ROWS(3, 2.0), "coupled": True, "axes": [0, 0, 1]}],
    )
    assert_equal(runs, covered=[])
    runs = fused_and_plain([(8, 3, 3, 3), (8,)], lambda ps: [{"params": ps, "region": ROWS(3, 2.0), "coupled": True}])
    assert_equal(runs)
