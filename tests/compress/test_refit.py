"""Refit: the closed-form least-squares solution, checked against numpy; and what it is worth on a trained network."""

from __future__ import annotations

import copy
import itertools
import math

import numpy as np
import pytest
import scipy.linalg
import scipy.optimize
import torch
from torch import Tensor, nn
from torch.nn import functional

from sparsefw.compress import compress, recalibrate, refit, samples
from sparsefw.compress.attention import PlainAttention
from sparsefw.compress.calibration import Calibration
from sparsefw.compress.layers import as_matrices, set_weight
from sparsefw.compress.plan import Keep
from sparsefw.compress.refit import DEFAULT_RIDGE, RIDGES, Point, Solution, Sums, best_rank, on_support
from sparsefw.compress.samples import choose_positions, patches
from sparsefw.compress.stages import kept_rows
from sparsefw.data import load_digits
from sparsefw.models import build

CPU = torch.device("cpu")
MODES = {"zeros": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# Patches


def by_hand(layer: nn.modules.conv._ConvNd, x: np.ndarray) -> np.ndarray:
    """What a convolution sees, by loops: (images, channels, taps, positions)."""
    axes = len(layer.kernel_size)
    reach = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
    if layer.padding == "same":
        margins = [(r // 2, r - r // 2) for r in reach]
    else:
        margins = [(0, 0)] * axes if layer.padding == "valid" else [(p, p) for p in layer.padding]
    padded = np.pad(x, [(0, 0), (0, 0), *margins], mode=MODES[layer.padding_mode])
    counts = [(padded.shape[2 + i] - reach[i] - 1) // layer.stride[i] + 1 for i in range(axes)]
    columns = []
    for position in itertools.product(*map(range, counts)):
        taps = []
        for tap in itertools.product(*map(range, layer.kernel_size)):
            at = [position[i] * layer.stride[i] + tap[i] * layer.dilation[i] for i in range(axes)]
            taps.append(padded[(slice(None), slice(None), *at)])
        columns.append(np.stack(taps, axis=-1))
    return np.stack(columns, axis=-1)


GEOMETRIES = [
    (nn.Conv1d, dict(kernel_size=3), (9,)),
    (nn.Conv1d, dict(kernel_size=3, stride=2, dilation=2, padding=3, padding_mode="circular"), (9,)),
    (nn.Conv2d, dict(kernel_size=3), (6, 5)),
    (nn.Conv2d, dict(kernel_size=1), (4, 4)),
    (nn.Conv2d, dict(kernel_size=(3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2)), (7, 6)),
    (nn.Conv2d, dict(kernel_size=3, padding=2, padding_mode="reflect"), (5, 6)),
    (nn.Conv2d, dict(kernel_size=3, padding=1, padding_mode="replicate", stride=2), (6, 6)),
    (nn.Conv2d, dict(kernel_size=(3, 5), padding="same", padding_mode="circular"), (6, 6)),
    (nn.Conv2d, dict(kernel_size=3, padding="same", dilation=2), (6, 6)),
    (nn.Conv2d, dict(kernel_size=2, padding="valid"), (5, 5)),
    (nn.Conv2d, dict(kernel_size=3, groups=2, padding=1), (5, 5)),
    (nn.Conv2d, dict(kernel_size=3, groups=4, padding=1), (5, 5)),  # depthwise
    (nn.Conv3d, dict(kernel_size=(2, 3, 2), stride=(1, 2, 1), padding=(0, 1, 1)), (3, 5, 4)),
    (nn.Conv3d, dict(kernel_size=2, dilation=2, groups=2, padding_mode="replicate", padding=1), (4, 3, 4)),
]
IDS = [f"{kind.__name__}-{' '.join(f'{k}={v}' for k, v in options.items())}" for kind, options, _ in GEOMETRIES]


@pytest.mark.parametrize("kind, options, size", GEOMETRIES, ids=IDS)
def test_patches_are_what_the_layer_sees(kind, options, size):
    layer = kind(4, 8, **options).double()
    x = normal(2, 4, *size)
    y = layer(x)
    everything = torch.arange(math.prod(y.shape[2:]))
    found = patches(layer, x, everything, y.shape[2:])
    np.testing.assert_array_equal(found.numpy(), by_hand(layer, x.numpy()))
    some = everything[torch.randperm(len(everything))[:3]]
    assert torch.equal(patches(layer, x, some, y.shape[2:]), found[..., some])


def test_patches_of_images_are_unfold():
    layer = nn.Conv2d(3, 4, (3, 2), stride=(2, 1), padding=(2, 1), dilation=(1, 2)).double()
    x = normal(2, 3, 8, 7)
    size = layer(x).shape[2:]
    found = patches(layer, x, torch.arange(math.prod(size)), size)
    assert torch.equal(found.flatten(1, 2), functional.unfold(x, (3, 2), (1, 2), (2, 1), (2, 1)))


def test_positions_are_all_or_a_random_choice():
    layer, generator = nn.Conv2d(1, 1, 1), torch.Generator().manual_seed(0)
    assert choose_positions(layer, torch.zeros(2, 1, 8, 16), generator).tolist() == list(range(128))
    chosen = choose_positions(layer, torch.zeros(2, 1, 20, 16), generator)
    assert len(chosen.unique()) == samples.POSITIONS == len(chosen)
    assert 0 <= int(chosen.min()) < int(chosen.max()) < 320


# The solution


class Shifted(nn.Module):
    """Some input disturbance, and the layer to refit behind it: the inputs of dense and compressed network differ."""

    def __init__(self, layer: nn.Module, disturbed: bool) -> None:
        super().__init__()
        self.disturbed, self.layer = disturbed, layer

    def see(self, x: Tensor) -> Tensor:
        return x + 0.5 * x.roll(1, dims=0).sin() + 0.3 if self.disturbed else x

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.see(x))


def refitted(
    layer: nn.Module, batches: list[Tensor], rows: list[int] | None = None, centred: bool | None = None, write=None
) -> nn.Module:
    """The layer, refitted to compute from disturbed inputs what it did from the others."""
    dense, current = Shifted(layer, False), copy.deepcopy(layer)
    if rows is not None:
        Keep("0", "out", tuple(rows)).apply(nn.Sequential(current))
    small = Shifted(current, True)

    def put(name: str, solution: Solution) -> Tensor:
        set_weight(current, solution.weight)
        return solution.weight

    offset = layer.bias is not None if centred is None else centred
    refit.refit(
        dense,
        [Point(small, {} if rows is None else {"layer": rows}, write or put)],
        ["layer"],
        Calibration(batches, CPU),
        lambda name: offset,
    )
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in (*dense.modules(), *small.modules()))
    return current


def data(layer: nn.Module, batches: list[Tensor], rows: list[int] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """X (g, f, samples) and Y (g, n, samples) of the fit, by loops."""
    groups = getattr(layer, "groups", 1)
    xs, ys = [], []
    for batch in batches:
        x = Shifted(layer, True).see(batch)
        with torch.no_grad():
            y = layer(batch)
        if isinstance(layer, nn.Linear):
            xs.append(x.reshape(-1, x.shape[-1]).T.numpy()[None])
            y = y.reshape(-1, y.shape[-1]).T.numpy()
        else:
            columns = by_hand(layer, x.numpy())  # (images, channels, taps, positions)
            xs.append(columns.transpose(1, 2, 0, 3).reshape(groups, -1, columns.shape[0] * columns.shape[3]))
            y = y.flatten(2).transpose(0, 1).flatten(1).numpy()
        ys.append((y if rows is None else y[rows]).reshape(groups, -1, xs[-1].shape[-1]))
    return np.concatenate(xs, axis=2), np.concatenate(ys, axis=2)


def least_squares(x: np.ndarray, y: np.ndarray, offset: bool) -> tuple[np.ndarray, np.ndarray]:
    """argmin ||Y - W X - b||^2 by numpy, per group; b is 0 without an offset."""
    weights, offsets = [], []
    for own_x, own_y in zip(x, y, strict=True):
        design = np.vstack([own_x, np.ones((1, own_x.shape[1]))]) if offset else own_x
        solution = np.linalg.lstsq(design.T, own_y.T, rcond=None)[0].T
        weights.append(solution[:, :-1] if offset else solution)
        offsets.append(solution[:, -1] if offset else np.zeros(len(own_y)))
    return np.stack(weights), np.concatenate(offsets)


def ridge(x: np.ndarray, y: np.ndarray, start: np.ndarray, r: float, centred: bool) -> np.ndarray:
    """(Y X^T / N + r m W0) (X X^T / N + r m I)^-1 with m the mean square of an input."""
    weights = []
    for own_x, own_y, w in zip(x, y, start, strict=True):
        if centred:
            own_x, own_y = own_x - own_x.mean(1, keepdims=True), own_y - own_y.mean(1, keepdims=True)
        count = own_x.shape[1]
        gram = own_x @ own_x.T / count
        amount = r * np.trace(gram) / len(gram)
        weights.append((own_y @ own_x.T / count + amount * w) @ np.linalg.inv(gram + amount * np.eye(len(gram))))
    return np.stack(weights)


LAYERS = [(kind, dict(options, bias=bias), size) for kind, options, size in GEOMETRIES for bias in (True, False)]


def make(kind: type, options: dict) -> nn.Module:
    torch.manual_seed(0)
    return kind(4, 8, **options).double()


@pytest.mark.parametrize("kind, options, size", LAYERS, ids=[f"{i}-bias={b}" for i in IDS for b in (True, False)])
def test_convolutions_solve_the_least_squares_problem(kind, options, size, monkeypatch):
    layer = make(kind, options)
    batches = [normal(n, 4, *size, seed=n) for n in (20, 3, 12)]
    x, y = data(layer, batches)
    centred = layer.bias is not None

    found = refitted(layer, batches)
    expected = ridge(x, y, as_matrices(layer).detach().numpy(), DEFAULT_RIDGE, centred)
    np.testing.assert_allclose(as_matrices(found).detach().numpy(), expected, rtol=1e-8, atol=1e-9)

    monkeypatch.setattr(refit, "DEFAULT_RIDGE", 0.0)
    found = refitted(layer, batches)
    weight, offset = least_squares(x, y, centred)
    np.testing.assert_allclose(as_matrices(found).detach().numpy(), weight, rtol=1e-7, atol=1e-8)
    if centred:
        np.testing.assert_allclose(found.bias.detach().numpy(), offset, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("between", [(), (3,), (2, 2)], ids=["2-d", "3-d", "4-d"])
def test_linear_layers_solve_the_least_squares_problem(between, bias, monkeypatch):
    monkeypatch.setattr(refit, "DEFAULT_RIDGE", 0.0)
    layer = nn.Linear(4, 6, bias=bias).double()
    batches = [normal(n, *between, 4, seed=n) for n in (9, 14, 10)]
    found = refitted(layer, batches)
    weight, offset = least_squares(*data(layer, batches), bias)
    np.testing.assert_allclose(found.weight.detach().numpy()[None], weight, rtol=1e-7, atol=1e-8)
    if bias:
        np.testing.assert_allclose(found.bias.detach().numpy(), offset, rtol=1e-7, atol=1e-8)


def test_an_offset_that_batch_norm_absorbs_is_no_matter_of_the_weight(monkeypatch):
    monkeypatch.setattr(refit, "DEFAULT_RIDGE", 0.0)
    layer = nn.Linear(4, 6, bias=False).double()
    batches = [normal(30, 4) + 5]
    found = refitted(layer, batches, centred=True)
    weight, _ = least_squares(*data(layer, batches), True)
    np.testing.assert_allclose(found.weight.detach().numpy()[None], weight, rtol=1e-7, atol=1e-8)


def test_the_bias_makes_the_means_right_over_all_batches():
    """Those that were held out for the ridge too."""
    layer = nn.Linear(4, 6).double()
    batches = [normal(20, 4, seed=i) + i for i in range(5)]
    found = refitted(layer, batches)
    x, y = data(layer, batches)
    offset = y[0].mean(1) - found.weight.detach().numpy() @ x[0].mean(1)
    np.testing.assert_allclose(found.bias.detach().numpy(), offset, rtol=1e-10, atol=1e-10)


def test_without_an_offset_the_bias_stays():
    layer = nn.Linear(4, 6).double()
    assert torch.equal(refitted(layer, [normal(20, 4)], centred=False).bias, layer.bias)


@pytest.mark.parametrize("groups", [1, 2])
def test_layers_that_lost_outputs_fit_those_that_are_left(groups, monkeypatch):
    monkeypatch.setattr(refit, "DEFAULT_RIDGE", 0.0)
    layer, rows = make(nn.Conv2d, dict(kernel_size=3, groups=groups)), [1, 3, 4, 7]
    batches = [normal(25, 4, 5, 6)]
    found = refitted(layer, batches, rows=rows)
    weight, offset = least_squares(*data(layer, batches, rows), True)
    np.testing.assert_allclose(as_matrices(found).detach().numpy(), weight, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(found.bias.detach().numpy(), offset, rtol=1e-7, atol=1e-8)


def test_large_means_do_not_cost_precision(monkeypatch):
    """Means 1e5 times the deviations: sums about 0 would lose ten digits of the covariance."""
    monkeypatch.setattr(refit, "DEFAULT_RIDGE", 0.0)
    layer = nn.Linear(4, 6).double()
    batches = [normal(40, 4, seed=i) + 1e5 for i in range(3)]
    found = refitted(layer, batches)
    x, y = data(layer, batches)
    weight, _ = least_squares(x - x.mean(2, keepdims=True), y - y.mean(2, keepdims=True), True)
    np.testing.assert_allclose(found.weight.detach().numpy()[None], weight, rtol=1e-6, atol=1e-7)


def test_chosen_positions_are_new_in_every_batch_and_the_same_in_every_run(monkeypatch):
    """A map of more than 128 positions: the solution is that of the chosen ones, whatever the batch sizes."""
    layer, seen = make(nn.Conv2d, dict(kernel_size=3)), []

    def spy(*args):
        seen.append(choose_positions(*args))
        return seen[-1]

    monkeypatch.setattr(refit, "choose_positions", spy)
    monkeypatch.setattr(refit, "DEFAULT_RIDGE", 0.0)
    batches = [normal(3, 4, 15, 15, seed=i) for i in range(2)]
    first, second = refitted(layer, batches), refitted(layer, batches)
    assert torch.equal(first.weight, second.weight)
    assert torch.equal(seen[0], seen[2])
    assert not torch.equal(seen[0], seen[1])
    x, y = data(layer, batches)
    half = 3 * 169
    columns = [i * half + image * 169 + p for i in range(2) for image in range(3) for p in seen[i].tolist()]
    weight, _ = least_squares(x[..., columns], y[..., columns], True)
    np.testing.assert_allclose(as_matrices(first).detach().numpy(), weight, rtol=1e-7, atol=1e-8)


# Difficult inputs


def test_dead_inputs_keep_their_weights():
    layer = make(nn.Conv2d, dict(kernel_size=3))
    kept = layer.weight[:, 2].clone()
    dense, small = nn.Sequential(layer), nn.Sequential(copy.deepcopy(layer))
    x = normal(8, 4, 6, 6)
    x[:, 2] = 0

    def write(name: str, solution: Solution) -> Tensor:
        set_weight(small[0], solution.weight)
        return solution.weight

    refit.refit(dense, [Point(small, {}, write)], ["0"], Calibration([x], CPU), lambda name: True)
    torch.testing.assert_close(small[0].weight[:, 2], kept)
    torch.testing.assert_close(small(x), dense(x))


@pytest.mark.parametrize("amount", [DEFAULT_RIDGE, 0.0], ids=["with ridge", "without"])
@pytest.mark.parametrize(
    "disturb",
    [
        lambda x: torch.cat([x[:, :2], x[:, :2]], dim=1),  # inputs that repeat each other
        lambda x: x[:, :1].expand(-1, 4),  # all the same
        lambda x: torch.cat([x[:, :3], torch.ones_like(x[:, :1])], dim=1),  # a constant one
        lambda x: torch.zeros_like(x),  # all dead
        lambda x: x * 1e-12,
        lambda x: x * 1e12,
    ],
)
def test_singular_systems_have_finite_solutions_that_fit(disturb, amount, monkeypatch):
    monkeypatch.setattr(refit, "DEFAULT_RIDGE", amount)
    layer = nn.Linear(4, 5).double()
    batches = [disturb(normal(30, 4))]
    found = refitted(layer, batches)
    assert found.weight.isfinite().all()
    x, y = data(layer, batches)
    weight, offset = least_squares(x, y, True)
    best = np.linalg.norm(y[0] - weight[0] @ x[0] - offset[:, None])
    got = np.linalg.norm(y[0] - found.weight.detach().numpy() @ x[0] - found.bias.detach().numpy()[:, None])
    assert got <= best + 0.05 * np.linalg.norm(y[0] - y[0].mean(1, keepdims=True)) + 1e-9


@pytest.mark.parametrize("sizes", [(1,), (1, 1), (2,), (1, 5, 1, 1, 1)])
def test_few_samples(sizes):
    """Fewer than there are weights: what the data does not say stays as it was."""
    layer = nn.Linear(4, 5).double()
    found = refitted(layer, [normal(n, 4, seed=n) for n in sizes])
    assert found.weight.isfinite().all()
    if sizes in ((1,), (1, 1)):  # centred, they are the same sample
        torch.testing.assert_close(found.weight, layer.weight)


@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv2d])
def test_inputs_without_a_batch_axis(kind):
    layer = kind(4, 5, 3).double()
    x = normal(4, *[7] * (layer.weight.ndim - 2))
    found, expected = (refitted(layer, [v.roll(1, dims=0)]) for v in (x, x.unsqueeze(0)))
    if kind is nn.Conv1d:  # rolled along the batch there, along the channels here: only that it runs
        assert found.weight.shape == expected.weight.shape
    assert found.weight.isfinite().all()


@pytest.mark.parametrize("limit", [1, 5_000, 40_000])
def test_patches_are_made_a_few_images_at_a_time(limit, monkeypatch):
    layer = make(nn.Conv2d, dict(kernel_size=3, groups=2))
    batches = [normal(n, 4, 6, 6, seed=n) for n in (7, 12)]
    expected = refitted(layer, batches)
    sizes = []

    def spy(*args):
        found = patches(*args)
        sizes.append(found.numel() * found.element_size())
        return found

    monkeypatch.setattr(samples, "patches", spy)
    monkeypatch.setattr(samples, "PATCH_BYTES", limit)
    found = refitted(layer, batches)
    one_image = 4 * 9 * 16 * 8
    assert len(sizes) > 2
    assert max(sizes) <= max(limit, one_image)
    torch.testing.assert_close(found.weight, expected.weight, rtol=1e-9, atol=1e-10)


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


# Whole networks


def network(norm: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    parts: list[nn.Module] = []
    for a, b in ((2, 12), (12, 12), (12, 12)):
        parts += [nn.Conv2d(a, b, 3, padding=1, bias=not norm), nn.BatchNorm2d(b) if norm else nn.Identity(), nn.ReLU()]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(48, 5)).double()


def batches(count: int = 3) -> list[Tensor]:
    return [normal(16, 2, 6, 6, seed=i) + 0.2 for i in range(count)]


KINDS = [{"filters": 0.5}, {"filters": 0.5, "form": "masked"}, {"rank": 0.75}, {"weights": 0.8}]


@pytest.mark.parametrize("how", KINDS, ids=str)
def test_no_layer_fits_worse_than_with_its_plain_weight(how, monkeypatch):
    """On the inputs that it gets in the refitted network, against the outputs of the dense one."""
    monkeypatch.setattr(refit, "DEFAULT_RIDGE", 1e-9)
    net = network()
    plain, fitted = (compress(net, example=batches()[0], calibration=c, **how) for c in (None, batches()))
    assert plain.plan.edits == fitted.plan.edits
    rows = kept_rows(net, fitted.plan.edits)
    x, better = torch.cat(batches()), 0
    with torch.no_grad():
        for i in (0, 3, 6, 11):
            wanted = net[: i + 1](x)
            wanted = wanted[:, rows.get(str(i), slice(None))]
            seen = fitted.model[:i](x)
            errors = [float((wanted - m.model[i](seen)).square().sum()) for m in (fitted, plain)]
            assert errors[0] <= errors[1] * (1 + 1e-6) + 1e-12
            better += errors[0] < 0.9 * errors[1]
    assert better >= 3


@pytest.mark.parametrize("kind", [nn.Linear, lambda a, b: nn.Conv2d(a, b, 1)], ids=["linear", "convolution"])
@pytest.mark.parametrize("ratio", [0.5, 0.8], ids=["one layer", "two layers"])
def test_low_rank_is_the_best_for_the_data_not_for_the_weight(kind, ratio):
    """Inputs that differ in size by 1,000: the singular vectors of the weight alone spend the rank on what is never there."""
    torch.manual_seed(0)
    net = nn.Sequential(kind(8, 8), nn.ReLU(), kind(8, 2)).double()
    sizes = torch.logspace(-3, 0, 8, dtype=torch.float64)
    x = normal(60, 8) * sizes
    x = x if kind is nn.Linear else x.view(60, 8, 1, 1)
    plain, fitted = (compress(net, rank=ratio, example=x, calibration=c).model[0] for c in (None, [x]))
    with torch.no_grad():
        errors = [float((layer(x) - net[0](x)).norm()) for layer in (fitted, plain)]
        W, X = net[0].weight.flatten(1).numpy(), x.flatten(1).T.numpy()
    rank = 4 if ratio == 0.5 else 1
    best = np.linalg.svd(W @ (X - X.mean(1, keepdims=True)), compute_uv=False)
    assert errors[0] == pytest.approx(math.sqrt((best[rank:] ** 2).sum()), rel=0.05)
    assert errors[0] < 0.8 * errors[1]


def test_masked_filters_stay_masked():
    small = compress(network(), filters=0.5, form="masked", calibration=batches())
    for edit in small.plan.edits:
        silent = small.model.get_submodule(edit.layer).weight.flatten(1).norm(dim=1) == 0
        assert silent.nonzero().flatten().tolist() == list(edit.filters)
        assert len(edit.filters) == 6


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("how", [{"filters": 0.001}, {"weights": 1e-5}, {"filters": 0.001, "form": "masked"}], ids=str)
def test_nothing_removed_nothing_changed(how, norm):
    net, data_ = network(norm).float(), [b.float() for b in batches(5)]
    small = compress(net, calibration=data_, **how).model
    expected = recalibrate(net, data_).eval()
    with torch.no_grad():
        for x in data_:
            gap = (small.eval()(x) - expected(x)).abs().max() / expected(x).abs().max()
            assert float(gap) < 1e-4


def test_rows_that_stay_of_layers_that_keep_channels_apart_and_of_attention():
    """What the dense network computed at the outputs that are left, in their order."""
    net = nn.Module()
    net.conv, net.depthwise = nn.Conv2d(3, 6, 1), nn.Conv2d(4, 8, 3, groups=4)
    net.plain = PlainAttention(6, 3, 2)
    net.fused = nn.Module()
    net.fused.qkv, net.fused.proj, net.fused.num_heads, net.fused.head_dim = nn.Linear(6, 18), nn.Linear(6, 6), 3, 2
    edits = [
        Keep("conv", "out", (5, 1)),
        Keep("conv", "in", (0,)),
        Keep("depthwise", "each", (1, 3)),
        Keep("plain", "heads", (0, 2)),
        Keep("fused", "heads", (1,)),
    ]
    assert kept_rows(net, edits) == {
        "conv": [5, 1],
        "depthwise": [2, 3, 6, 7],
        "plain.query": [0, 1, 4, 5],
        "plain.key": [0, 1, 4, 5],
        "plain.value": [0, 1, 4, 5],
        "fused.qkv": [2, 3, 8, 9, 14, 15],
    }


def test_attention_is_refitted():
    """With fewer heads the block comes nearer to the dense one than by mere removal."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True).double().eval()
    data_ = [normal(16, 6, 16, seed=i) for i in range(5)]
    gaps = []
    with torch.no_grad():
        for calibrated in (False, True):
            small = compress(layer, filters=0.5, example=data_[0], calibration=data_ if calibrated else None)
            assert any(isinstance(e, Keep) and e.side == "heads" for e in small.plan.edits)
            gaps.append(float((small.model.eval()(data_[0]) - layer(data_[0])).square().mean()))
    assert gaps[1] < 0.8 * gaps[0]


def test_progress_and_no_traces():
    calls: list[tuple[int, int, str]] = []
    net = network(norm=True)
    small = compress(net, filters=0.5, calibration=batches(), progress=lambda *call: calls.append(call))
    assert calls == [(0, 4, "0"), (1, 4, "3"), (2, 4, "6"), (3, 4, "11"), (4, 4, "")]
    for model in (net, small.model):
        assert not any(m._forward_hooks or m._forward_pre_hooks or "forward" in vars(m) for m in model.modules())


def test_no_hook_stays_behind_an_error():
    def stop(done: int, total: int, name: str) -> None:
        if done == 2:
            raise KeyboardInterrupt

    net = network(norm=True)
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(KeyboardInterrupt):
        compress(net, filters=0.5, calibration=batches(), progress=stop)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())
    assert all(torch.equal(a, b) for a, b in zip(before.values(), net.state_dict().values(), strict=True))


def test_what_cannot_be_refitted_is_listed():
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.twice, self.head = nn.ConvTranspose2d(2, 8, 2), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.relu(self.twice(torch.relu(self.twice(torch.relu(self.up(x)))))))

    small = compress(Mixed(), weights=0.5, calibration=[b.float() for b in batches()])
    assert {(u.layer, u.reason) for u in small.plan.untouched} == {
        ("up", "not refitted: transposed"),
        ("twice", "not refitted: used more than once"),
    }


# A trained network


@pytest.fixture(scope="module")
def trained() -> nn.Module:
    torch.manual_seed(0)
    net, (images, labels) = build("resnet_digits"), load_digits()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    epochs, per_epoch = 8, len(images.split(64))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / (epochs * per_epoch))
    for _ in range(epochs):
        for chosen in torch.randperm(len(images)).split(64):
            optimizer.zero_grad()
            functional.cross_entropy(net(images[chosen]), labels[chosen]).backward()
            optimizer.step()
            schedule.step()
    return net.eval()


def accuracies(net: nn.Module, **how) -> tuple[float, float]:
    """Percent of the test digits recognised, plain and refitted, with 256 unlabelled training images."""
    calibration, (images, labels) = list(load_digits().images[:256].split(64)), load_digits("test")
    found = []
    with torch.no_grad():
        for fit in (False, True):
            small = compress(net, calibration=calibration, refit=fit, **how).model.eval()
            found.append(100 * float((small(images).argmax(1) == labels).float().mean()))
    return found[0], found[1]


@pytest.mark.parametrize("ratio", [0.5, 0.6, 0.7, 0.8, 0.9])
@pytest.mark.parametrize("form", ["removed", "masked"])
def test_refit_raises_accuracy_after_filters_were_removed(trained, form, ratio):
    plain, fitted = accuracies(trained, filters=ratio, form=form)
    assert fitted > plain + 10
    if ratio <= 0.7:
        assert fitted > 85


@pytest.mark.parametrize(
    "how", [*({"rank": r} for r in (0.6, 0.75, 0.9)), *({"weights": r} for r in (0.9, 0.95, 0.97))], ids=str
)
def test_refit_does_not_lower_accuracy_by_rank_or_weights(trained, how):
    plain, fitted = accuracies(trained, **how)
    assert fitted >= plain
