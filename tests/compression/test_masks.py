"""Weights: exactly the asked number of smallest entries become 0, and nothing else changes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sparsefw.compression import compress
from sparsefw.compression.artifact.plan import Thin
from sparsefw.compression.structure.masks import global_masks, n_m_mask, share_of
from sparsefw.geometry.select import stable_top_k_mask


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def zeros(model: nn.Module) -> int:
    return sum(
        int((m.weight == 0).sum()) for m in model.modules() if isinstance(m, (nn.Linear, nn.modules.conv._ConvNd))
    )


magnitudes = st.lists(st.sampled_from([0.0, 1e-30, 1e-30, 0.5, 1.0, 1.0, 2.0]), min_size=1, max_size=60)


@settings(max_examples=200, deadline=None)
@given(magnitudes, st.data())
def test_exactly_the_smallest_are_removed(values, data):
    """Whatever the ties, the zeros that are there and the tiny values."""
    x = torch.tensor(values, dtype=torch.float64)
    count = data.draw(st.integers(0, len(values)))
    mask = stable_top_k_mask(x, count)
    assert int(mask.sum()) == count
    if 0 < count < len(values):
        assert x[mask].min() >= x[~mask].max()


@settings(max_examples=100, deadline=None)
@given(st.lists(magnitudes, min_size=1, max_size=4), st.floats(0, 0.999))
def test_one_threshold_over_all_layers(layers, removed):
    weights = {f"layer{i}": torch.tensor(v, dtype=torch.float64) * (-1) ** i for i, v in enumerate(layers)}
    masks = global_masks(weights, removed)
    total = sum(map(len, layers))
    gone = total - sum(int(m.sum()) for m in masks.values())
    assert gone == math.floor(removed * total + 1e-9)
    kept = torch.cat([weights[n].abs()[m] for n, m in masks.items()])
    lost = torch.cat([weights[n].abs()[~m] for n, m in masks.items()])
    if len(lost) and len(kept):
        assert kept.min() >= lost.max()


@pytest.mark.parametrize("removed, gone", [(0.1, 1), (0.3, 3), (0.7, 7), (0.29, 2), (0.999, 9)])
def test_tenths_that_floats_miss(removed, gone):
    """0.7 * 10 is 7.000...1 and 0.29 * 100 is 28.999... in floats."""
    (mask,) = global_masks({"w": torch.arange(1.0, 11.0)}, removed).values()
    assert mask.tolist() == [False] * gone + [True] * (10 - gone)
    assert int(global_masks({"w": torch.arange(1.0, 101.0)}, 0.29)["w"].sum()) == 71


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("length", [10, 20_000])
def test_of_equal_ones_the_first_stay(length, dtype):
    mask = stable_top_k_mask(torch.ones(length, dtype=dtype), 4)
    assert mask.nonzero().flatten().tolist() == [0, 1, 2, 3]
    x = torch.zeros(length, dtype=dtype)
    x[5] = 1.0
    assert stable_top_k_mask(x, 3).nonzero().flatten().tolist() == [0, 1, 5]


# N of every M


@pytest.mark.parametrize("shape", [(6, 8), (5, 7), (3, 9, 3, 3), (4, 6, 3), (2, 5, 2, 2, 2)])
@pytest.mark.parametrize("n, m", [(2, 4), (1, 4), (4, 8), (1, 2), (3, 3)])
def test_n_of_every_m_along_the_input_channels(shape, n, m):
    kinds = {2: nn.Linear, 3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}
    layer = kinds[len(shape)](shape[1], shape[0], *shape[2:3]).double()
    with torch.no_grad():
        layer.weight.copy_(normal(*layer.weight.shape))
    mask = n_m_mask(layer, n, m)
    columns = layer.weight.detach().abs().movedim(1, -1).reshape(-1, shape[1])
    chosen = mask.movedim(1, -1).reshape(-1, shape[1])
    for values, kept in zip(columns.tolist(), chosen.tolist(), strict=True):
        for start in range(0, shape[1], m):
            block = list(range(start, min(start + m, shape[1])))
            best = sorted(block, key=lambda i: -values[i])[:n]
            assert [i for i in block if kept[i]] == sorted(best)


@pytest.mark.parametrize("kind", [nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d])
def test_inputs_of_transposed_layers_are_the_first_axis(kind):
    layer = kind(8, 3, 2)
    mask = n_m_mask(layer, 2, 4)
    assert mask.shape == layer.weight.shape
    assert (mask.unflatten(0, (2, 4)).sum(1) == 2).all()


def test_layers_with_few_inputs_stay_whole():
    assert n_m_mask(nn.Conv2d(2, 8, 3), 2, 4).all()
    assert n_m_mask(nn.Conv2d(1, 8, 3), 2, 4).all()
    assert n_m_mask(nn.Conv2d(8, 8, 3, groups=8), 2, 4).all()
    assert int(n_m_mask(nn.Conv2d(3, 1, 1), 2, 4).sum()) == 2


# compress(weights=...)


def network() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.ConvTranspose2d(8, 4, 2),
        nn.Flatten(),
        nn.Linear(4 * 49, 5),
    )
    nn.init.normal_(net[1].running_mean)
    return net.eval()


X = torch.linspace(-1, 1, 2 * 3 * 64).sin().view(2, 3, 8, 8)


@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.9, 0.97])
@pytest.mark.parametrize("allocation", [None, "global", "uniform"])
def test_the_asked_fraction_of_all_weights_is_zero(ratio, allocation):
    net = network()
    total = sum(net[i].weight.numel() for i in (0, 3, 5))
    small = compress(net, weights=ratio, allocation=allocation, example=X)
    if allocation == "uniform":
        for i in (0, 3, 5):
            assert int((small.model[i].weight == 0).sum()) == round(ratio * net[i].weight.numel())
    else:
        assert zeros(small.model) == math.floor(ratio * total + 1e-9)
    assert {e.layer: e.of - e.nonzero for e in small.plan.edits if isinstance(e, Thin)} == {
        str(i): int((small.model[i].weight == 0).sum()) for i in (0, 3, 5)
    }


def test_remaining_weights_are_unchanged():
    net = network()
    small = compress(net, weights=0.8, example=X).model
    for (name, a), b in zip(net.state_dict().items(), small.state_dict().values(), strict=True):
        if name.endswith("weight") and a.ndim > 1:
            assert torch.equal(b[b != 0], a[b != 0])
        else:
            assert torch.equal(a, b), name  # biases, batch norm


def test_tiny_weights_are_weights_and_zeros_that_were_there_count():
    net = nn.Sequential(nn.Linear(10, 10, bias=False), nn.Linear(10, 10, bias=False)).double()
    with torch.no_grad():
        net[0].weight.fill_(1e-30)
        net[1].weight.zero_()
        net[1].weight[0] = 1.0
    small = compress(net, weights=0.9, example=normal(1, 10)).model  # 180 of 200 go; 90 are 0 already
    assert zeros(small) == 180
    assert (small[1].weight[0] == 1).all()
    assert int((small[0].weight == 1e-30).sum()) == 10
    small = compress(net, weights=0.2, example=normal(1, 10)).model
    assert zeros(small) == 90  # no more than there are


def test_zeros_that_were_there_are_not_filled_by_refit():
    """Fewer are removed than are 0 already, so the model must not become denser than it was."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    with torch.no_grad():
        net[0].weight[:, 8:] = 0
    small = compress(net, weights=0.2, calibration=[torch.randn(64, 16) for _ in range(3)])
    assert (small.model[0].weight[:, 8:] == 0).all()
    assert small.costs.bytes <= small.dense.bytes


def test_weights_that_layers_share_count_once():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(10, 10), nn.Linear(10, 10)
            self.b.weight = self.a.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x))

    net = Tied()
    with torch.no_grad():
        net.a.weight.fill_(1.0)  # all tied: which go is decided by position
    small = compress(net, weights=0.35, example=torch.randn(1, 10))
    assert small.model.a.weight is small.model.b.weight
    assert int((small.model.a.weight == 0).sum()) == 35
    assert [e.layer for e in small.plan.edits] == ["a"]


def test_pattern():
    net = network()
    small = compress(net, weights="2:4", example=X).model
    assert int((small[0].weight == 0).sum()) == 8 * 9  # one of three inputs
    assert int((small[3].weight == 0).sum()) == small[3].weight.numel() // 2
    assert int((small[5].weight == 0).sum()) == small[5].weight.numel() // 2
    assert int((compress(net, weights="1:3", example=X).model[5].weight != 0).sum()) == 5 * math.ceil(196 / 3)


def test_a_nearly_empty_layer_is_noted():
    net = nn.Sequential(nn.Linear(50, 50, bias=False), nn.ReLU(), nn.Linear(50, 50, bias=False))
    with torch.no_grad():
        net[0].weight.mul_(1e-3)
        net[0].weight[:2, :12] = 2.0  # 24 of 2,500
        net[2].weight.fill_(1.0)
    for ratio, said in ((0.49, []), (0.5, ["nearly empty: 24 of 2500 weights left"])):
        small = compress(net, weights=ratio, example=torch.randn(1, 50))
        assert [u.reason for u in small.plan.untouched if u.layer == "0"] == said


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_weight_that_is_not_finite_is_named(bad):
    net = network()
    with torch.no_grad():
        net[3].weight[1, 2, 0, 0] = bad
    with pytest.raises(ValueError, match=r"^3\.weight contains NaN or inf; .*$"):
        compress(net, weights=0.5, example=X)


@pytest.mark.parametrize(
    "count, ratio, gone", [(44_500_000, 0.7, 31_150_000), (86_000_000, 0.57, 49_020_000), (3, 1 / 3, 1)]
)
def test_shares_of_large_numbers(count, ratio, gone):
    assert share_of(ratio, count) == gone


def test_exactly_that_many_of_many():
    mask = global_masks({"w": torch.rand(10_000_019, generator=torch.Generator().manual_seed(0))}, 0.7)["w"]
    assert int((~mask).sum()) == 7_000_013
