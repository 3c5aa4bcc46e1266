"""Unusual input and corner cases of the optimizer that no other test covers."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from catalog import gaussian, regions
from sparsefw import SFW
from sparsefw import geometry as geo
from sparsefw.geometry import subspace
from sparsefw.optim import Diameter, FastGradient, Gradient, NonFiniteGradientError, Unscaled
from sparsefw.optim.nonfinite import GradientCheck


@pytest.mark.parametrize("scale", [1e-17, 1e-18, 1e-19, 1e-20, 1e-22, 1e-23, 1e-30, 1e-40, 1e-45])
def test_vanishing_gradients_neither_leave_the_region_nor_become_nan(scale):
    """In float32 squares below 1e-38 are denormal: a norm made of them must not make a vertex too long."""
    shape = (6, 5)
    for region in regions(shape, exact=False):
        for rule in (Unscaled(), Gradient(), Diameter()):
            p = nn.Parameter(torch.zeros(shape))
            optimizer = SFW([{"params": [p], "region": region}], lr=0.9, rescale=rule)
            for step in range(3):
                p.grad = (gaussian(shape, step) * scale).float()
                p.grad[0] = 0
                optimizer.step()
            assert bool(p.isfinite().all()), (region, rule)
            assert float(region.norm(p.detach())) <= region.radius * (1 + 1e-5), (region, rule)


@pytest.mark.parametrize(
    "region", [geo.LpBall(1.4), geo.GroupKSupportBall(2), geo.KSupportBall(3), geo.SpectralKSupportBall(2)], ids=str
)
def test_a_long_phase_of_zero_gradients(region):
    """Momentum decays through every denormal number down to 0."""
    p = nn.Parameter(gaussian((4, 4), 0, torch.float32) * 0.1)
    optimizer = SFW([{"params": [p], "region": region}], lr=0.5, rescale=Unscaled())
    for step in range(1100):
        p.grad = torch.ones(4, 4) if step == 0 else torch.zeros(4, 4)
        optimizer.step()
    assert bool(p.isfinite().all())
    assert bool(region.contains(p.detach()))
    before = p.detach().clone()
    optimizer.step()
    assert torch.equal(p, before)


@pytest.mark.parametrize("region", [geo.GroupKSupportBall(2, 5.0), geo.SpectralKSupportBall(2, 5.0)], ids=str)
def test_half_precision_weights_may_change_their_memory_format(region):
    p = nn.Parameter(gaussian((8, 4, 3, 3), 0, torch.float32).bfloat16())
    optimizer = SFW([{"params": [p], "region": region}])
    for step in range(4):
        if step == 2:
            p.data = p.data.to(memory_format=torch.channels_last)
        p.grad = gaussian((8, 4, 3, 3), step, torch.float32).bfloat16()
        before = p.detach().clone()
        optimizer.step()
        assert not torch.equal(p, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cleared_state_is_a_fresh_start(dtype):
    p = nn.Parameter((gaussian((8, 8), 0, torch.float32) * 0.1).to(dtype))
    optimizer = SFW([{"params": [p], "region": geo.GroupKSupportBall(2, 5.0)}], lr=0.1)
    for step in range(3):
        p.grad = gaussian((8, 8), step, torch.float32).to(dtype)
        optimizer.step()
    optimizer.state.clear()
    fresh = nn.Parameter(p.detach().clone())
    other = SFW([{"params": [fresh], "region": geo.GroupKSupportBall(2, 5.0)}], lr=0.1)
    for q, o in ((p, optimizer), (fresh, other)):
        q.grad = gaussian((8, 8), 9, torch.float32).to(dtype)
        o.step()
    assert torch.equal(p, fresh)
    assert "momentum" in optimizer.state[p]


@pytest.mark.parametrize("region", [geo.GroupKSupportBall(2, 5.0), None], ids=str)
def test_a_masked_first_step_is_no_first_step(monkeypatch, region):
    monkeypatch.setattr("sparsefw.optim.nonfinite.on_host", lambda device: False)
    masked, clean = (nn.Parameter(gaussian((4, 4), 0, torch.float32)) for _ in range(2))
    for p in (masked, clean):
        optimizer = SFW([{"params": [p], "region": region}], dampening=0.5, on_nonfinite="skip")
        if p is masked:
            p.grad = torch.full((4, 4), float("nan"))
            optimizer.step()
        for step in range(3):
            p.grad = gaussian((4, 4), step + 1, torch.float32)
            optimizer.step()
    assert torch.equal(masked, clean)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_are_pulled_well_inside(dtype):
    for seed in range(10):
        x = gaussian((20, 30), seed, torch.float32).to(dtype)
        for region in (geo.GroupKSupportBall(2, 1.0), geo.KSupportBall(7, 1.0), geo.LpBall(2)):
            p = nn.Parameter(x.clone())
            SFW([{"params": [p], "region": region}])
            assert float(region.norm(p.detach())) <= 1 + 1e-6
            assert float(region.norm(region.pull_inside(x))) <= 1 + 1e-6


def test_reported_quality_is_that_of_the_step_taken():
    """On pure noise one warm iteration is far from exact, and the report must say so."""
    p = nn.Parameter(torch.zeros(64, 256))
    region = geo.SpectralKSupportBall(6, 100.0)
    optimizer = SFW([{"params": [p], "region": region}], lr=1.0, momentum=0.0, rescale=Unscaled())
    (report,) = optimizer.diagnostics()
    assert math.isnan(report.quality)
    for step in range(12):
        p.grad = gaussian((64, 256), step, torch.float32)
        optimizer.step()  # lr = 1 ends at the vertex itself
        vertex = p.detach() / region.radius
        true = float(-(vertex * p.grad).sum()) / float(region.dual_norm(p.grad))
        assert optimizer.diagnostics()[0].quality == pytest.approx(true, rel=1e-4)
    assert true < 0.9


def test_warm_starts_are_kept_between_steps():
    """The same gradient again and again: with a kept subspace one iteration a step converges, without it cannot."""
    G = gaussian((30, 60), 0, torch.float32)
    p = nn.Parameter(torch.zeros(30, 60))
    optimizer = SFW([{"params": [p], "region": geo.SpectralKSupportBall(3, 9.0, geo.WarmSubspace(1, 1))}], lr=0.0)
    qualities = []
    for _ in range(60):
        p.grad = G.clone()
        optimizer.step()
        qualities.append(optimizer.diagnostics()[0].quality)
    assert qualities[0] < 0.95
    assert qualities[-1] > 0.999
    assert "warm" in optimizer.state[p]


@pytest.mark.parametrize(("before", "after"), [(8, 4), (4, 8)])
def test_warm_starts_survive_another_k(before, after):
    G = gaussian((3, 20, 40), 0, torch.float32)
    params = [nn.Parameter(torch.zeros(20, 40)) for _ in range(3)]
    optimizer = SFW([{"params": params, "region": geo.SpectralKSupportBall(before, 9.0)}], lr=0.0)

    def step(skip_middle):
        for i, p in enumerate(params):
            p.grad = None if skip_middle and i == 1 else G[i].clone()
        optimizer.step()

    for _ in range(100):
        step(False)
    optimizer.param_groups[0]["region"] = geo.SpectralKSupportBall(after, 9.0)
    step(True)
    step(False)
    step(False)
    assert min(report.quality for report in optimizer.diagnostics()) > (0.99 if after < before else 0.9)


def test_changed_view_is_followed():
    p = nn.Parameter(gaussian((6, 6), 0))
    optimizer = SFW([{"params": [p], "region": geo.GroupKSupportBall(1, 100.0)}], lr=0.1, momentum=0.0)
    p.grad = gaussian((6, 6), 1)
    optimizer.step()
    optimizer.param_groups[0]["region"] = geo.GroupKSupportBall(1, 100.0, axis=1)
    before = p.detach().clone()
    optimizer.step()
    eta = optimizer.diagnostics()[0].step_size
    moved = ((p.detach() - (1 - eta) * before).abs() > 1e-12).any(0)
    assert int(moved.sum()) == 1  # one column


def test_coupled_blocks_must_be_rows():
    parts = [nn.Parameter(torch.ones(4, 8, 3, 3)), nn.Parameter(torch.ones(4))]
    with pytest.raises(ValueError, match="a row per channel"):
        SFW([{"params": parts, "region": geo.NMBall(2, 4), "coupled": True}])


def test_batch_length_of_coupled_blocks_and_of_the_fast_rule():
    for rule, denominator in ((Gradient(of_batch=True), None), (FastGradient(of_batch=True), 10.0)):
        parts = [
            nn.Parameter(torch.zeros(2, 1, dtype=torch.float64)),
            nn.Parameter(torch.zeros(2, dtype=torch.float64)),
        ]
        region = geo.GroupKSupportBall(2, 10.0)
        optimizer = SFW([{"params": parts, "region": region, "coupled": True}], lr=0.1, rescale=rule)
        for _ in range(2):
            before = torch.cat([p.detach().flatten() for p in parts])
            for p, value in zip(parts, (3.0, 4.0), strict=True):
                p.grad = torch.zeros_like(p)
                p.grad.view(-1)[0] = value  # ||g|| = 5, and after the second step ||m|| = 9.5
            optimizer.step()
        after = torch.cat([p.detach().flatten() for p in parts])
        way = 10.0 - float(before.norm()) if denominator else 1.0
        expected = 0.1 * 5 if denominator is None else 0.1 * 5 / denominator * way
        assert float((after - before).norm()) == pytest.approx(expected, rel=1e-9)


def test_blocks_of_one_stack_that_start_at_different_times():
    """A late block makes its own first step (m = g), whatever its neighbours in the stack did before."""
    early, late, alone = (nn.Parameter(torch.zeros(3, 3, dtype=torch.float64)) for _ in range(3))
    region = geo.GroupKSupportBall(1, 50.0)
    a, b = (
        SFW([{"params": [early, late], "region": region}], dampening=0.5),
        SFW([{"params": [alone], "region": region}], dampening=0.5),
    )
    for step in range(4):
        early.grad = gaussian((3, 3), step)
        late.grad = gaussian((3, 3), 50 + step) if step > 1 else None
        a.step()
        if step > 1:
            alone.grad = late.grad.clone()
            b.step()
    torch.testing.assert_close(late, alone, rtol=1e-12, atol=1e-12)


def test_gradients_whose_momentum_would_overflow_are_not_healthy():
    """Ten gradients of norm 1e19 sum up to a momentum whose square is beyond float32."""
    with pytest.raises(NonFiniteGradientError):
        GradientCheck().check([torch.full((1,), 1e18)], ["w"])
    GradientCheck().check([torch.full((1,), 1e17)], ["w"])


def test_masked_steps_do_not_count_as_clamped(monkeypatch):
    monkeypatch.setattr("sparsefw.optim.nonfinite.on_host", lambda device: False)
    p = nn.Parameter(torch.ones(2, 2))
    optimizer = SFW([{"params": [p], "region": geo.GroupKSupportBall(1, 9.0)}], lr=1e9, on_nonfinite="skip")
    p.grad = torch.ones(2, 2)
    optimizer.step()
    p.grad = torch.full((2, 2), float("nan"))
    optimizer.step()
    assert optimizer.diagnostics()[0].clamped == 1.0  # of the one step that was taken
    optimizer.param_groups[0]["lr"] = 1e-6
    p.grad = torch.full((2, 2), -2.0)
    optimizer.step()
    assert optimizer.diagnostics()[0].clamped == 0.5


def test_length_and_norm_are_different_things():
    p = nn.Parameter(torch.ones(4, 1, dtype=torch.float64))
    optimizer = SFW([{"params": [p], "region": geo.GroupKSupportBall(1, 8.0)}], lr=0.0)
    (report,) = optimizer.diagnostics()
    assert report.norm == pytest.approx(4 / 8)
    assert report.length == pytest.approx(2 / 8)
    assert len(str(optimizer.diagnostics()).splitlines()) == 3  # a header, the layer, and the whole


def test_compressible_of_n_m_looks_at_blocks():
    p = nn.Parameter(torch.tensor([[1.0, 1, 1, 1, 0, 0, 0, 0]], dtype=torch.float64))
    optimizer = SFW([{"params": [p], "region": geo.NMBall(2, 4, 50.0)}], lr=0.0)
    assert optimizer.diagnostics()[0].compressible == pytest.approx(math.sqrt(0.5))


def test_polar_factor_of_tiny_matrices_and_orthonormal_columns_of_nearly_dependent_ones():
    G = gaussian((1, 4, 9), 0, torch.float32)
    torch.testing.assert_close(subspace.polar_factor(G * 1e-30), subspace.polar_factor(G), rtol=1e-3, atol=1e-4)
    P = gaussian((1, 30, 2), 1)
    P[..., 1] = P[..., 0] + 1e-5 * P[..., 1]  # one pass of CholeskyQR leaves them at 1e-6 from orthogonal
    Q = subspace.orthonormal(P)
    assert float((Q.mT @ Q - torch.eye(2)).abs().max()) < 1e-9


@pytest.mark.parametrize("ratio", [1e9, 1e12, 1e16])
def test_projections_of_points_very_far_away(ratio):
    w = gaussian((8, 4), 0) * ratio
    for region in regions((8, 4)):
        x = region.project(w)
        assert float(region.norm(x)) == pytest.approx(region.radius, rel=1e-3 if ratio < 1e15 else 1), region
        assert float(region.norm(x)) <= region.radius * (1 + 1e-9)


def test_empty_parameters_do_not_keep_others_from_moving():
    empty = nn.Parameter(torch.zeros(3, 0))
    other = nn.Parameter(torch.zeros(3, 2))
    optimizer = SFW([{"params": [empty, other], "region": geo.GroupKSupportBall(1)}])
    empty.grad = torch.zeros(3, 0)
    other.grad = torch.ones(3, 2)
    optimizer.step()
    assert float(other.detach().abs().sum()) > 0


def test_adamw_in_float64_is_torch_in_float64():
    ours, theirs = (nn.Parameter(gaussian((5,), 0)) for _ in range(2))
    a, b = SFW([ours], rest="adamw", lr=0.01, weight_decay=0.1), torch.optim.AdamW([theirs], lr=0.01, weight_decay=0.1)
    for step in range(20):
        ours.grad, theirs.grad = gaussian((5,), step), gaussian((5,), step)
        a.step()
        b.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=1e-13)
