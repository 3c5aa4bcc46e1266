"""Defects known from other implementations of this method, each as a test of ours."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from sparsefw import SFW, constrain
from sparsefw import geometry as geo


def test_k_support_norm_at_k_equal_one_is_the_l1_norm():
    """Too small by sqrt(n + 1) elsewhere, so that infeasible starts were accepted."""
    x = torch.randn(16, dtype=torch.float64)
    assert float(geo.KSupportBall(1).norm(x)) == pytest.approx(float(x.abs().sum()))
    p = nn.Parameter(torch.ones(16, 3))
    region = geo.GroupKSupportBall(1, 2.0)
    SFW([{"params": [p], "region": region}])
    assert float(p.detach().norm(dim=1).sum()) == pytest.approx(2.0)


def test_near_ties_do_not_break_the_k_support_norm():
    """A tolerance elsewhere left no index at all and raised IndexError."""
    x = torch.ones(1000, dtype=torch.float32) * (1 + 1e-7 * torch.randn(1000))
    for k in (1, 2, 10, 500, 999, 1000):
        assert float(geo.KSupportBall(k).norm(x)) == pytest.approx(1000 / k**0.5, rel=1e-5)


def test_l2_diameter_of_lp_balls_between_one_and_two():
    assert geo.LpBall(1.5, 3.0).diameter((100,)) == pytest.approx(6.0)


def test_tied_filters_never_activate_more_than_k():
    v = geo.GroupKSupportBall(3).lmo(torch.ones(8, 5))
    assert int((v.norm(dim=1) > 0).sum()) == 3


def test_zero_gradient_of_a_spectral_region_is_not_nan():
    p = nn.Parameter(torch.randn(5, 7))
    optimizer = SFW([{"params": [p], "region": geo.SpectralKSupportBall(2, 3.0)}])
    for _ in range(3):
        before = p.detach().clone()
        p.grad = torch.zeros_like(p)
        optimizer.step()
        assert torch.equal(p, before)


def test_vertices_are_not_shifted_by_parameters_without_gradient():
    params = [nn.Parameter(torch.randn(4, 4, dtype=torch.float64)) for _ in range(3)]
    region = geo.GroupKSupportBall(1, 50.0)
    optimizer = SFW([{"params": params, "region": region}], lr=0.1)
    params[2].grad = torch.randn(4, 4, dtype=torch.float64)
    before, v = params[2].detach().clone(), region.lmo(params[2].grad)
    optimizer.step()
    moved = params[2].detach() - before
    torch.testing.assert_close(moved / moved.norm(), (v - before) / (v - before).norm())


def test_measuring_the_initial_norm_leaves_the_model_and_the_random_state_alone():
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Embedding(4, 4))
    before, rng = copy.deepcopy(net.state_dict()), torch.random.get_rng_state()
    constrain(nn.Sequential(net[2]), geo.KSupportBall, k=1, w=1.0, report=None)
    assert all(torch.equal(a, b) for a, b in zip(before.values(), net.state_dict().values(), strict=True))
    assert torch.equal(rng, torch.random.get_rng_state())


def test_clamping_keeps_the_iterate_feasible_when_the_step_would_overshoot():
    p = nn.Parameter(torch.randn(6, 6, dtype=torch.float64))
    region = geo.KSupportBall(3, 1.0)
    optimizer = SFW([{"params": [p], "region": region}], lr=100.0)
    for _ in range(20):
        p.grad = torch.randn(6, 6, dtype=torch.float64) * 10
        optimizer.step()
        assert bool(region.contains(p.detach(), tolerance=1e-9))
