"""What refit chooses and writes: the ridge on held-out batches, the best weight of a rank or on a support."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.linalg
import scipy.optimize
import torch
from torch import Tensor, nn

from compression.least_squares import normal, refitted, ridge
from sparsefw.compression.recovery import refit
from sparsefw.compression.recovery.cut_network import Solution
from sparsefw.compression.recovery.refit import RIDGES, Sums, best_rank, on_support

CPU = torch.device("cpu")
MODES = {"zeros": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


# The choice of the ridge


def sums(x: np.ndarray, y: np.ndarray) -> Sums:
    total = Sums(torch.full((1, len(x)), 0.3, dtype=torch.float64), torch.full((1, len(y)), -0.2, dtype=torch.float64))
    total.add(torch.from_numpy(x)[None], torch.from_numpy(y)[None])
    return total


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize(
    "count, noise, wrong, chosen", [(12, 3.0, 0.0, RIDGES[-1]), (400, 0.0, 5.0, RIDGES[0])], ids=["noise", "clean"]
)
def test_the_ridge_is_best_on_samples_that_were_held_out(count, noise, wrong, chosen, centred):
    """Few and noisy samples: stay near the weight there was. Many clean ones, and a weight that is wrong: believe them."""
    random = np.random.default_rng(0)
    true = random.normal(size=(3, 10))
    start = torch.from_numpy(true + wrong * random.normal(size=true.shape))[None]
    x, held_x = random.normal(size=(10, count)), random.normal(size=(10, 200))
    y, held_y = true @ x + noise * random.normal(size=(3, count)), true @ held_x
    fitting, held = sums(x, y), sums(held_x, held_y)
    errors = []
    for r in RIDGES:
        w = ridge(x[None], y[None], start.numpy(), r, centred)[0]
        gap = held_y - w @ held_x
        gap = gap - gap.mean(1, keepdims=True) if centred else gap
        errors.append(np.square(gap).sum())
    assert RIDGES[int(np.argmin(errors))] == chosen
    found = refit._solve(start, fitting, held, centred).weight[0].numpy()
    everything = np.concatenate([x, held_x], axis=1)[None], np.concatenate([y, held_y], axis=1)[None]
    np.testing.assert_allclose(found, ridge(*everything, start.numpy(), chosen, centred)[0], rtol=1e-7, atol=1e-8)


def test_every_fourth_batch_is_held_out(monkeypatch):
    seen = []
    monkeypatch.setattr(refit, "_best_ridge", lambda start, fitting, held, centred: seen.append((fitting, held)) or 0.0)
    batches = [normal(2 + i, 4, seed=i) for i in range(9)]
    refitted(nn.Linear(4, 5).double(), batches)
    (fitting, held) = seen[0]
    assert int(held.count) == (2 + 3) + (2 + 7)
    assert int(fitting.count) == sum(2 + i for i in range(9)) - 14


# What is written: the best of a given rank, or on a given support


def system(n: int = 5, f: int = 7, seed: int = 0) -> Solution:
    """Correlated inputs of very different size, and some weight."""
    mixing = torch.eye(f, dtype=torch.float64) + 0.7 * normal(f, f, seed=seed) / math.sqrt(f)
    x = torch.linspace(0.05, 3, f, dtype=torch.float64).unsqueeze(1) * (mixing @ normal(f, 400, seed=seed + 1))
    gram = x @ x.mT / 400
    gram = (gram + RIDGES[0] * gram.diagonal().mean() * torch.eye(f, dtype=torch.float64))[None]
    weight = normal(1, n, f, seed=seed + 2)
    return Solution(weight, gram, weight @ gram)


def objective(solution: Solution, weight: Tensor) -> float:
    """||(W - X) G^(1/2)||_F"""
    gap = (solution.weight - weight)[0].numpy()
    return float(np.linalg.norm(gap @ scipy.linalg.sqrtm(solution.gram[0].numpy()).real))


@pytest.mark.parametrize("n, f", [(5, 7), (7, 5)])
def test_best_rank_is_the_whitened_singular_value_decomposition(n, f):
    solution = system(n, f)
    whitened = (solution.weight[0].numpy()) @ scipy.linalg.sqrtm(solution.gram[0].numpy()).real
    values = np.linalg.svd(whitened, compute_uv=False)
    for rank in range(1, 5):
        found = best_rank(solution, rank)
        assert np.linalg.matrix_rank(found[0].numpy(), tol=1e-9) == rank
        assert objective(solution, found) == pytest.approx(math.sqrt((values[rank:] ** 2).sum()), rel=1e-7)


def test_no_search_finds_a_better_one():
    solution = system(3, 4)
    best = objective(solution, best_rank(solution, 1))
    W, G = solution.weight[0].numpy(), solution.gram[0].numpy()

    def squared(v: np.ndarray) -> float:
        gap = W - np.outer(v[:3], v[3:])
        return float(np.trace(gap @ G @ gap.T))

    found = [scipy.optimize.minimize(squared, np.random.default_rng(i).normal(size=7)).fun for i in range(5)]
    assert min(found) == pytest.approx(best**2, rel=1e-6)
    u, s, vt = np.linalg.svd(W)
    plain = torch.from_numpy(s[0] * np.outer(u[:, 0], vt[0]))[None]
    assert best < 0.99 * objective(solution, plain)  # the truncated weight itself is worse


def test_best_rank_of_groups():
    parts = [system(5, 7, seed=s) for s in (0, 10)]
    both = Solution(*(torch.cat([getattr(p, name) for p in parts]) for name in ("weight", "gram", "moments")))
    torch.testing.assert_close(best_rank(both, 2), torch.cat([best_rank(p, 2) for p in parts]))


@pytest.mark.parametrize("density", [0.0, 0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("f", [7, 120])
def test_on_support_solves_every_row_on_its_support(f, density):
    solution = system(6, f)
    mask = torch.rand(1, 6, f, generator=torch.Generator().manual_seed(0)) < density
    mask[0, 0] = False  # a row without any
    found = on_support(solution, mask)[0].numpy()
    G, M = solution.gram[0].numpy(), solution.moments[0].numpy()
    for row in range(6):
        support = mask[0, row].nonzero().flatten().numpy()
        expected = np.zeros(f)
        expected[support] = np.linalg.solve(G[np.ix_(support, support)], M[row, support])
        np.testing.assert_allclose(found[row], expected, atol=1e-6 * max(1.0, np.abs(expected).max()))


def test_on_support_with_inputs_that_nearly_repeat_each_other():
    """Forty samples of 120 inputs: which of the weights that fit equally well is open, how well they fit is not."""
    x = normal(120, 40)
    gram = x @ x.mT / 40
    gram = (gram + RIDGES[0] * gram.diagonal().mean() * torch.eye(120, dtype=torch.float64))[None]
    weight = normal(1, 6, 120, seed=1)
    solution, mask = Solution(weight, gram, weight @ gram), normal(1, 6, 120, seed=2) > 0
    found, exact = on_support(solution, mask), torch.zeros_like(weight)
    for row in range(6):
        s = mask[0, row].nonzero().flatten()
        exact[0, row, s] = torch.linalg.solve(gram[0][s][:, s], solution.moments[0, row, s])
    assert objective(solution, found) == pytest.approx(objective(solution, exact), rel=1e-6)


def test_on_support_of_groups():
    parts = [system(5, 7, seed=s) for s in (0, 10)]
    both = Solution(*(torch.cat([getattr(p, name) for p in parts]) for name in ("weight", "gram", "moments")))
    mask = normal(2, 5, 7) > 0
    expected = torch.cat([on_support(p, mask[i : i + 1]) for i, p in enumerate(parts)])
    torch.testing.assert_close(on_support(both, mask), expected, rtol=1e-6, atol=1e-8)
