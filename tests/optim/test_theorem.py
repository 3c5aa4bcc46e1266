"""The paper's convergence theorem, and its extension to the exact denominator, checked numerically.

l_i(x) = 1 / (1 + exp(y_i <a_i, x>)) with rows of norm 2: L is M-smooth with M = 4 / (6 sqrt 3), gradients are bounded by
Gc = 2 / 4, L(0) = 1/2 and L >= 0, so that h0 = 1/2. The measure is the mean over the iterates of gap * ||grad L||.

    constant denominator (the paper's):  eta_t = eta ||g_t||,                eta = 1 / (Gc sqrt(2 T))
    exact denominator (ours):            eta_t = eta ||g_t|| / ||v - x||,    eta = sqrt(2 h0 / (T M Gc^2))
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from sparsefw import SFW
from sparsefw import geometry as geo
from sparsefw.optim import FastGradient, Gradient

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


def mean_measure(region, shape, T, exact, rows=64, batch=None, seed=0) -> float:
    """The theorem's left side, with SFW itself making the steps."""
    a, y = problem(rows, shape)
    generator = torch.Generator().manual_seed(seed)
    x = nn.Parameter(torch.zeros(shape, dtype=torch.float64))
    if exact:
        rule, lr = Gradient(), math.sqrt(2 * H0 / (T * M * GC**2))
    else:  # FastGradient multiplies by 1 / (D / 2): undo it
        rule, lr = FastGradient(), region.diameter(shape) / 2 / (GC * math.sqrt(2 * T))
    optimizer = SFW([{"params": [x], "region": region}], lr=lr, momentum=0.0, rescale=rule)

    def gradient(rows_a, rows_y):
        p = torch.sigmoid(-rows_y * (rows_a * x.detach()).flatten(1).sum(1))
        return (-(p * (1 - p) * rows_y).view(-1, *[1] * len(shape)) * rows_a).mean(0)

    total = 0.0
    for _ in range(T):
        full = gradient(a, y)
        total += float(region.gap(x.detach(), full) * full.norm())
        if batch is None:
            x.grad = full
        else:
            sample = torch.randint(rows, (batch,), generator=generator)
            x.grad = gradient(a[sample], y[sample])
        optimizer.step()
    return total / T


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
