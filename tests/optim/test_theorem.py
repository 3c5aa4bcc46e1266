"""The paper's convergence theorem, and its extension to the exact denominator, checked numerically.

l_i(x) = 1 / (1 + exp(y_i <a_i, x>)) with rows of norm 2: L is M-smooth with M = 4 / (6 sqrt 3), gradients are bounded by
Gc = 2 / 4, L(0) = 1/2 and L >= 0, so that h0 = 1/2. The measure is the mean over the iterates of gap * ||grad L||.

    constant denominator (the paper's):  eta_t = eta ||g_t||,                eta = 1 / (Gc sqrt(2 T))
    exact denominator (ours):            eta_t = eta ||g_t|| / ||v - x||,    eta = sqrt(2 h0 / (T M Gc^2))

Of the horizon rule, whose shares do not look at the gradient, it is the gap itself: its mean over the iterates, by their shares.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from sparsefw import SFW
from sparsefw import geometry as geo
from sparsefw.optim import FastGradient, Gradient, Horizon

M, GC, H0 = 4 / (6 * math.sqrt(3)), 0.5, 0.5


def problem(rows: int, shape: tuple[int, ...]):
    """Planted sparse model with label noise; rows are normalised to length 2."""
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(rows, *shape, generator=generator, dtype=torch.float64)
    a = 2 * a / a.flatten(1).norm(dim=1).view(-1, *[1] * len(shape))
    planted = torch.zeros(shape, dtype=torch.float64)
    planted.view(-1)[:4] = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)
    noise = 0.1 * torch.randn(rows, generator=generator, dtype=torch.float64)
    y = torch.sign((a * planted).flatten(1).sum(1) + noise)
    return a, y


def iterates(region, shape, T, rule, lr, rows=64, batch=None, seed=0):
    """(gap, ||grad L||, eta) of every step that SFW itself makes."""
    a, y = problem(rows, shape)
    generator = torch.Generator().manual_seed(seed)
    x = nn.Parameter(torch.zeros(shape, dtype=torch.float64))
    optimizer = SFW([{"params": [x], "region": region}], lr=lr, momentum=0.0, rescale=rule)

    def gradient(rows_a, rows_y):
        p = torch.sigmoid(-rows_y * (rows_a * x.detach()).flatten(1).sum(1))
        return (-(p * (1 - p) * rows_y).view(-1, *[1] * len(shape)) * rows_a).mean(0)

    for _ in range(T):
        full = gradient(a, y)
        gap = float(region.gap(x.detach(), full))
        if batch is None:
            x.grad = full
        else:
            sample = torch.randint(rows, (batch,), generator=generator)
            x.grad = gradient(a[sample], y[sample])
        optimizer.step()
        yield gap, float(full.norm()), float(optimizer.step_sizes()[0])


def mean_measure(region, shape, T, exact, **how) -> float:
    """The theorem's left side."""
    if exact:
        rule, lr = Gradient(), math.sqrt(2 * H0 / (T * M * GC**2))
    else:  # FastGradient multiplies by 1 / (D / 2): undo it
        rule, lr = FastGradient(), region.diameter(shape) / 2 / (GC * math.sqrt(2 * T))
    return sum(gap * norm for gap, norm, _ in iterates(region, shape, T, rule, lr, **how)) / T


def bound(region, shape, T, exact, noise=True) -> float:
    D = region.diameter(shape)
    if exact:
        return D / math.sqrt(T) * (GC * math.sqrt(2 * H0 * M) + 2 * GC**2 * noise)
    beta = 2 * H0 / (M * D**2)
    return D / math.sqrt(T) * (math.sqrt(H0 * M * GC**2 * beta) + GC**2 * noise + M * GC * D / (2 * math.sqrt(2)))


REGIONS = [
    (geo.KSupportBall(4, 3.0), (20,)),
    (geo.GroupKSupportBall(2, 3.0), (6, 4)),
    (geo.SpectralKSupportBall(2, 3.0, geo.ExactSVD()), (6, 4)),
]


@pytest.mark.parametrize("exact", [False, True], ids=["constant", "exact"])
@pytest.mark.parametrize(("region", "shape"), REGIONS, ids=lambda value: str(value))
def test_bound_holds(region, shape, exact):
    for T in (64, 256):
        assert 0 < mean_measure(region, shape, T, exact) <= bound(region, shape, T, exact, noise=False)


@pytest.mark.slow
@pytest.mark.parametrize("exact", [False, True], ids=["constant", "exact"])
def test_rate_is_one_over_the_square_root(exact):
    region, shape = REGIONS[0]
    values = {T: mean_measure(region, shape, T, exact) for T in (1024, 4096, 8192)}
    for T, value in values.items():
        assert value <= bound(region, shape, T, exact, noise=False)
    slope = math.log2(values[8192] / values[4096])
    assert -0.55 < slope < -0.45


@pytest.mark.slow
@pytest.mark.parametrize("exact", [False, True], ids=["constant", "exact"])
def test_stochastic_gradients(exact):
    """Batch of T samples with replacement, as the theorem asks; three seeds."""
    region, shape = geo.KSupportBall(4, 3.0), (30,)
    mean = {
        T: sum(mean_measure(region, shape, T, exact, rows=400, batch=T, seed=s) for s in range(3)) / 3
        for T in (64, 256, 1024)
    }
    for T, value in mean.items():
        assert value <= bound(region, shape, T, exact)
    assert math.log(mean[1024] / mean[64]) / math.log(16) < -0.3


def test_an_approximate_oracle_is_an_exact_one_of_a_smaller_radius():
    """The warm-started spectral oracle of quality q has the gap of a ball of radius q r, so the bound holds for it too."""
    region, shape = geo.SpectralKSupportBall(2, 3.0), (6, 4)
    assert mean_measure(region, shape, 256, exact=True) <= bound(region, shape, 256, exact=True, noise=False)


def horizon_gap(region, shape, T, **how) -> tuple[float, float]:
    """(the mean gap by shares, its bound without noise) with the renewals that balance the two terms of the bound."""
    curvature = M * region.diameter(shape) ** 2
    renewals = math.sqrt(3 * T * H0 / (2 * curvature))
    steps = list(iterates(region, shape, T, Horizon(T, renewals), 0.1, **how))
    total, squares = (sum(eta**power for _, _, eta in steps) for power in (1, 2))
    assert total == pytest.approx(renewals, rel=2 / T + 1e-5)
    mean = sum(eta * gap for gap, _, eta in steps) / total
    return mean, H0 / total + curvature / 2 * squares / total


@pytest.mark.parametrize(("region", "shape"), REGIONS, ids=lambda value: str(value))
def test_the_horizon_rule_is_the_textbook_step(region, shape):
    for T in (256, 1024):
        mean, most = horizon_gap(region, shape, T)
        assert 0 < mean <= most


@pytest.mark.slow
def test_the_gap_of_the_horizon_rule_falls_like_one_over_the_square_root():
    region, shape = REGIONS[0]
    values = {T: horizon_gap(region, shape, T) for T in (4096, 8192)}
    assert all(mean <= most for mean, most in values.values())
    assert -0.6 < math.log2(values[8192][0] / values[4096][0]) < -0.4


@pytest.mark.slow
def test_noise_costs_the_horizon_rule_its_size_times_the_diameter():
    region, shape = geo.KSupportBall(4, 3.0), (30,)
    for batch in (64, 1024):
        mean, most = horizon_gap(region, shape, 512, rows=400, batch=batch)
        assert mean <= most + region.diameter(shape) * GC / math.sqrt(batch)
