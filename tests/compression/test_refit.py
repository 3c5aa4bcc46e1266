"""Refit: the closed-form least-squares solution, checked against numpy."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from compression.least_squares import by_hand, data, least_squares, normal, refitted, ridge
from sparsefw.compression.recovery import patches as patching
from sparsefw.compression.recovery import refit
from sparsefw.compression.recovery.calibration import Calibration
from sparsefw.compression.recovery.cut_network import CutNetwork, Solution
from sparsefw.compression.recovery.patches import choose_positions, patches
from sparsefw.compression.recovery.refit import DEFAULT_RIDGE
from sparsefw.compression.structure.layers import as_matrices, set_weight

CPU = torch.device("cpu")
MODES = {"zeros": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


# Patches


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
def test_patches_are_the_inputs_of_the_layer(kind, options, size):
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
    assert len(chosen.unique()) == patching.POSITIONS == len(chosen)
    assert 0 <= int(chosen.min()) < int(chosen.max()) < 320


# The solution


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


def test_an_offset_that_batch_norm_absorbs_does_not_change_the_weight(monkeypatch):
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

    refit.refit(dense, [CutNetwork(small, (), (), {}, write)], ["0"], Calibration([x], CPU), lambda name: True)
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

    monkeypatch.setattr(patching, "patches", spy)
    monkeypatch.setattr(patching, "PATCH_BYTES", limit)
    found = refitted(layer, batches)
    one_image = 4 * 9 * 16 * 8
    assert len(sizes) > 2
    assert max(sizes) <= max(limit, one_image)
    torch.testing.assert_close(found.weight, expected.weight, rtol=1e-9, atol=1e-10)
