"""Penalties and cuts in every view: each solves the problem that its docstring states."""

from __future__ import annotations

import pytest
import torch

from catalog import gaussian
from sparsefw import geometry as geo
from sparsefw.geometry.cuts import (
    direction,
    energy_cut,
    energy_cut_direction,
    hard_cut,
    largest_masks,
    low_rank_factors,
    n_m_mask,
    soft_cut,
)

VIEWS = [geo.Elements(), geo.Groups(), geo.Groups(axis=1), geo.Spectrum(geo.ExactSVD())]
SHAPE = (5, 6)
each_view = pytest.mark.parametrize("view", VIEWS, ids=str)


def test_every_view_is_cut():
    assert {type(view) for view in VIEWS} == set(geo.View.__subclasses__())


@each_view
def test_the_direction_is_the_derivative_of_the_sum_of_magnitudes(view):
    x, step = gaussian((1, *SHAPE), 0), gaussian((1, *SHAPE), 1)
    slope = (view.magnitudes(x + 1e-6 * step).sum() - view.magnitudes(x - 1e-6 * step).sum()) / 2e-6
    assert float((direction(view, x) * step).sum()) == pytest.approx(float(slope), rel=1e-6)


@each_view
def test_a_soft_cut_is_the_proximal_map_of_the_sum_of_magnitudes(view):
    x = gaussian((1, *SHAPE), 0)

    def objective(y: torch.Tensor) -> float:
        return float((y - x).square().sum() / 2 + 0.7 * view.magnitudes(y).sum())

    best = soft_cut(view, x, 0.7)
    for seed in range(20):
        assert objective(best) <= objective(best + 0.01 * gaussian((1, *SHAPE), seed))


@each_view
@pytest.mark.parametrize("keep", [1, 3])
def test_a_hard_cut_keeps_the_largest_magnitudes_and_is_nearest(view, keep):
    x = gaussian((2, *SHAPE), 0)
    cut = hard_cut(view, x, keep)
    ordered = view.magnitudes(x).sort(dim=-1, descending=True).values
    lost = (x - cut).flatten(1).norm(dim=-1)
    torch.testing.assert_close(lost, ordered[:, keep:].norm(dim=-1))
    assert (view.magnitudes(cut) > 1e-9).sum(-1).tolist() == [keep] * 2


@pytest.mark.parametrize("lost", [0.0, 0.1, 0.5])
def test_an_energy_cut_has_the_smallest_rank_that_loses_no_more(lost):
    view = geo.Spectrum(geo.ExactSVD())
    x = gaussian((2, *SHAPE), 0)
    cut = energy_cut(view, x, lost)
    energy = x.square().sum((1, 2))
    for block, rank in enumerate((view.magnitudes(cut) > 1e-9).sum(-1).tolist()):
        assert float((x - cut)[block].square().sum()) <= lost * float(energy[block]) + 1e-12
        fewer = hard_cut(view, x[block : block + 1], rank - 1)[0] if rank > 1 else torch.zeros(SHAPE)
        assert float((x[block] - fewer).square().sum()) > lost * float(energy[block])
    subgradient = energy_cut_direction(view, x, lost)
    kept = view.magnitudes(cut)
    torch.testing.assert_close(view.magnitudes(subgradient), (kept > 1e-9).double())
    torch.testing.assert_close((subgradient * x).sum((1, 2)), kept.sum(-1))


def test_masks_keep_the_largest_entries_of_all_tensors_together_and_the_first_of_equal_ones():
    first, second = largest_masks([torch.tensor([[1.0, -5.0]]), torch.tensor([5.0, 1.0, 2.0])], keep=4)
    assert first.tolist() == [[True, True]]
    assert second.tolist() == [True, False, True]


def test_patterns_never_keep_padding():
    mask = n_m_mask(torch.zeros(2, 6), n=2, m=4)
    assert mask.tolist()[0][4:] == [True, True]
    assert mask[:, :4].sum(-1).tolist() == [2, 2]


@pytest.mark.parametrize("shape", [(5, 6), (6, 5)])
def test_low_rank_factors_are_the_hard_cut_of_the_spectrum(shape):
    x = gaussian((2, *shape), 0)
    outer, inner = low_rank_factors(x, 2)
    torch.testing.assert_close(outer @ inner, hard_cut(geo.Spectrum(geo.ExactSVD()), x, 2))
