"""Low rank: one layer becomes two plain ones that compute the best approximation of that rank, exact at full rank."""

from __future__ import annotations

import copy
import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sparsefw.compression import compress
from sparsefw.compression.artifact.plan import Split, Truncate
from sparsefw.compression.structure.factorisation import (
    full_rank,
    is_smaller,
    kept_rank,
    least_ratio,
    split,
    truncate,
)
from sparsefw.compression.structure.layers import as_matrices
from sparsefw.geometry.cuts import low_rank_factors
from sparsefw.geometry.subspace import gram_values

SIZES = {1: (11,), 2: (9, 8), 3: (7, 6, 7)}
CONV = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gap(layer: nn.Module, pair: nn.Module, x: Tensor) -> float:
    with torch.no_grad():
        expected = layer(x)
        return float((pair(x) - expected).abs().max() / expected.abs().max())


def convolutions() -> list[tuple[int, dict]]:
    """Every padding with every padding mode; strides, dilations and groups, also all at once and per axis."""
    options: list[dict] = [dict(padding=p) for p in (0, 1, "valid", "same")]
    options += [
        dict(padding=p, padding_mode=m) for p, m in itertools.product((2, "same"), ("reflect", "replicate", "circular"))
    ]
    options += [dict(stride=2), dict(dilation=2), dict(groups=2), dict(groups=4), dict(bias=False, groups=2)]
    options += [dict(stride=2, dilation=2, groups=2, padding=2, padding_mode="reflect", bias=False)]
    options += [dict(dilation=2, padding="same", padding_mode="circular", groups=4)]
    return [(d, o) for d in (1, 2, 3) for o in options]


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")  # torch on its own layer
@pytest.mark.parametrize("dimensions, options", convolutions(), ids=str)
def test_full_rank_convolutions_compute_the_same(dimensions, options):
    torch.manual_seed(0)
    layer = CONV[dimensions](8, 12, 3 if dimensions < 3 else (3, 2, 3), **options).double()
    x = normal(2, 8, *SIZES[dimensions])
    assert gap(layer, split(layer, full_rank(layer)), x) < 1e-9


@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize(
    "options",
    [
        dict(),
        dict(stride=2, output_padding=1),
        dict(stride=3, output_padding=2, padding=1, bias=False),
        dict(dilation=2, padding=2),
        dict(groups=2, stride=2),
        dict(groups=4, stride=2, output_padding=1, dilation=2, padding=1),
    ],
    ids=str,
)
def test_full_rank_transposed_convolutions_compute_the_same(dimensions, options):
    torch.manual_seed(0)
    layer = TRANSPOSED[dimensions](8, 12, 3, **options).double()
    pair = split(layer, full_rank(layer))
    assert type(pair[0]) is type(layer)
    assert gap(layer, pair, normal(2, 8, *[3] * dimensions)) < 1e-9


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(6, 10), (10, 6), (1, 5), (5, 1)])
def test_full_rank_linear_layers_compute_the_same(shape, bias):
    layer = nn.Linear(shape[1], shape[0], bias=bias).double()
    pair = split(layer, full_rank(layer))
    assert gap(layer, pair, normal(4, shape[1])) < 1e-9
    assert gap(layer, pair, normal(2, 3, shape[1])) < 1e-9


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_full_rank_for_any_geometry_of_a_plane(data):
    groups, per_group = data.draw(st.sampled_from([1, 2, 3])), st.integers(1, 4)
    size = st.tuples(st.integers(1, 3), st.integers(1, 3))
    stride, dilation, kernel = data.draw(size), data.draw(size), data.draw(size)
    transposed, bias = data.draw(st.booleans()), data.draw(st.booleans())
    channels = [groups * data.draw(per_group) for _ in range(2)]
    options = dict(
        stride=stride, dilation=dilation, groups=groups, bias=bias, padding=data.draw(st.sampled_from([0, 1]))
    )
    if transposed:
        room = tuple(max(s, d) - 1 for s, d in zip(stride, dilation, strict=True))
        options["output_padding"] = tuple(data.draw(st.integers(0, most)) for most in room)
    torch.manual_seed(0)
    layer = (nn.ConvTranspose2d if transposed else nn.Conv2d)(*channels, kernel, **options).double()
    assert gap(layer, split(layer, full_rank(layer)), normal(2, channels[0], 8, 9)) < 1e-9


def test_the_second_layer_is_pointwise_and_the_first_keeps_the_geometry():
    layer = nn.Conv2d(8, 12, (3, 5), stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2, padding_mode="reflect")
    first, second = split(layer, 3)
    for name in ("in_channels", "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode"):
        assert getattr(first, name) == getattr(layer, name), name
    assert first.bias is None
    assert first.out_channels == second.in_channels == 6  # 3 in each of 2 groups
    assert second.kernel_size == (1, 1)
    assert second.groups == 2
    assert torch.equal(second.bias, layer.bias)


@pytest.mark.parametrize("groups, n, f", [(1, 7, 12), (1, 12, 7), (3, 5, 9), (2, 6, 6)])
def test_truncation_error_is_the_tail_of_the_singular_values(groups, n, f):
    W = normal(groups, n, f)
    values = np.linalg.svd(W.numpy(), compute_uv=False)
    np.testing.assert_allclose(gram_values(W).numpy(), values, rtol=1e-7)
    for rank in range(1, min(n, f) + 1):
        X = truncate(W, rank)
        error = np.linalg.norm((W - X).numpy(), axis=(1, 2))
        np.testing.assert_allclose(error, np.sqrt((values[:, rank:] ** 2).sum(1)), atol=1e-9 * values.max())
        assert np.linalg.matrix_rank(X.numpy(), tol=1e-9).max() <= rank


@pytest.mark.parametrize("groups, n, f", [(1, 7, 12), (1, 12, 7), (3, 5, 9)])
def test_factors_are_balanced(groups, n, f):
    """B^T B = A A^T = diag(s), so that neither factor is the large one: what training on from there, or float16, needs."""
    W = normal(groups, n, f)
    outer, inner = low_rank_factors(W, 4)
    s = torch.from_numpy(np.linalg.svd(W.numpy(), compute_uv=False)[:, :4].copy())
    torch.testing.assert_close(outer.mT @ outer, torch.diag_embed(s), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(inner @ inner.mT, torch.diag_embed(s), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("n, f", [(6, 9), (9, 6)])
def test_matrices_of_lower_rank_than_asked_for(n, f):
    """Rank 2, kept at 4: nothing is lost and nothing is invented."""
    W = (normal(n, 2) @ normal(2, f, seed=1)).unsqueeze(0)
    outer, inner = low_rank_factors(W, 4)
    torch.testing.assert_close(outer @ inner, W, atol=1e-7, rtol=0)
    assert outer.isfinite().all()
    assert inner.isfinite().all()


@pytest.mark.parametrize("n, f", [(4, 6), (6, 4)])
def test_a_zero_matrix_stays_zero(n, f):
    outer, inner = low_rank_factors(torch.zeros(2, n, f, dtype=torch.float64), 2)
    assert not outer.any()
    assert not (outer @ inner).any()
    assert inner.isfinite().all()


@pytest.mark.parametrize("scale", [1e-20, 1e20])
def test_the_scale_of_a_weight_does_not_matter(scale):
    W = normal(1, 5, 7)
    torch.testing.assert_close(truncate(W * scale, 2) / scale, truncate(W, 2), rtol=1e-9, atol=1e-9)


def test_weights_that_are_not_finite_are_refused():
    W = normal(1, 3, 4)
    W[0, 1, 2] = math.nan
    with pytest.raises(ValueError, match=r"weight of shape .*NaN"):
        truncate(W, 2)


@pytest.mark.parametrize(
    "n, f, ratio, round_to, kept",
    [
        (160, 200, 0.8, 1, 32),  # (1 - 0.8) * 160 is 31.999... in floats
        (200, 160, 0.8, 1, 32),
        (10, 20, 0.75, 1, 2),  # 2.5, and at least what was asked is removed
        (10, 20, 0.95, 1, 1),
        (10, 20, 0.999, 1, 1),
        (10, 20, 0.0, 1, 10),
        (64, 64, 0.5, 8, 32),
        (64, 64, 0.7, 8, 24),  # 19, and never more goes than was asked
        (64, 64, 0.65, 8, 24),  # 22
        (64, 64, 0.97, 8, 8),  # not 0
        (6, 64, 0.5, 8, 6),  # never more than there are
    ],
)
def test_how_many_singular_values_stay(n, f, ratio, round_to, kept):
    assert kept_rank(nn.Linear(f, n), ratio, round_to) == kept


def test_rank_counts_in_every_group():
    layer = nn.Conv2d(32, 32, 1, groups=4)  # four matrices of 8 x 8
    assert full_rank(layer) == 8
    assert kept_rank(layer, 0.5) == 4
    assert split(layer, 4)[0].out_channels == 16


@pytest.mark.parametrize("layer", [nn.Linear(8, 8), nn.Conv2d(4, 6, 3), nn.Conv2d(8, 8, 3, groups=4)])
def test_smaller_means_fewer_weights(layer):
    for rank in range(1, full_rank(layer) + 1):
        fewer = sum(m.weight.numel() for m in split(layer, rank)) < layer.weight.numel()
        assert is_smaller(layer, rank) == fewer


def test_dtype_mode_and_frozen_parameters_stay():
    torch.manual_seed(0)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        layer = nn.Linear(8, 8, dtype=dtype).eval()
        layer.weight.requires_grad_(False)
        pair = split(layer, 2)
        assert {p.dtype for p in pair.parameters()} == {dtype}
        assert [p.requires_grad for p in pair.parameters()] == [False, False, True]
        assert not any(m.training for m in pair.modules())
        layer.weight.requires_grad_(True)
        layer.bias.requires_grad_(False)
        assert [p.requires_grad for p in split(layer, 2).parameters()] == [True, True, False]
    assert all(m.training for m in split(nn.Linear(8, 8), 2).modules())
    assert {p.device.type for p in split(nn.Conv2d(4, 4, 3, device="cpu"), 1).parameters()} == {"cpu"}


@pytest.mark.parametrize(
    "kind, form",
    [(nn.Conv2d, torch.channels_last), (nn.ConvTranspose2d, torch.channels_last), (nn.Conv3d, torch.channels_last_3d)],
)
def test_memory_format_stays(kind, form):
    layer = kind(4, 6, 3)
    assert all(p.is_contiguous() for p in split(layer, 2).parameters())
    first, second = split(layer.to(memory_format=form), 2)
    assert first.weight.is_contiguous(memory_format=form)
    assert not first.weight.is_contiguous()
    x = torch.randn(1, 4, *[5] * (layer.weight.ndim - 2)).contiguous(memory_format=form)
    assert second(first(x)).stride() == layer(x).stride()


@pytest.mark.parametrize("layer", [nn.Conv2d(8, 8, 1), nn.Conv2d(1, 8, 3)])
def test_weights_that_are_contiguous_either_way_do_not_turn_a_model_to_channels_last(layer):
    x = torch.randn(2, layer.in_channels, 6, 6)
    assert split(layer, 2)(x).stride() == layer(x).stride()
    assert split(layer, 2)[0].weight.stride() == layer.weight[:2].stride()


def test_no_random_numbers_are_drawn():
    layers = [nn.Linear(8, 8), nn.Conv2d(4, 4, 3)]
    state = torch.random.get_rng_state()
    for layer in layers:
        split(layer, 2)
    assert torch.equal(state, torch.random.get_rng_state())


# compress(rank=...)


def chain(*widths: int) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1]).double()


def test_layers_are_split_but_for_the_last():
    net = chain(16, 16, 16, 4)
    small = compress(net, rank=0.75, example=normal(2, 16))
    assert [e for e in small.plan.edits if isinstance(e, Split)] == [Split("0", 4), Split("2", 4)]
    W = net[2].weight.detach().numpy()
    U, s, V = np.linalg.svd(W)
    first, second = small.model[2]
    np.testing.assert_allclose((second.weight @ first.weight).detach().numpy(), (U[:, :4] * s[:4]) @ V[:4], atol=1e-9)
    assert isinstance(small.model[4], nn.Linear)
    assert torch.equal(small.model[4].weight, net[4].weight)


def test_a_layer_that_would_not_get_smaller_stays_one_and_is_listed():
    net = chain(8, 8, 8, 4)
    small = compress(net, rank=0.4, example=normal(2, 8))  # rank 4 of 8 x 8: 64 weights either way
    assert small.plan.edits == (Truncate("0", 4), Truncate("2", 4))
    assert [(u.layer, u.reason) for u in small.plan.untouched if not u.note] == [("4", "the model's output")]
    reason = "its rank is lower, in one layer: two would be smaller only above rank=0.5"
    assert [(u.layer, u.reason) for u in small.plan.untouched if u.note][:2] == [("0", reason), ("2", reason)]
    U, s, V = np.linalg.svd(net[0].weight.detach().numpy())
    np.testing.assert_allclose(small.model[0].weight.detach().numpy(), (U[:, :4] * s[:4]) @ V[:4], atol=1e-9)
    assert small.costs.parameters == small.dense.parameters
    assert f"0, 2: {reason}" in str(small)


@pytest.mark.parametrize("n, f", [(64, 64), (48, 144), (30, 70), (5, 3)])
def test_two_layers_are_smaller_above_the_least_ratio_and_only_there(n, f):
    layer = nn.Linear(f, n)
    for kept in range(1, min(n, f) + 1):
        removed = 1 - kept / min(n, f)
        assert is_smaller(layer, kept) == (removed > least_ratio(layer) + 1e-12)


def test_for_a_target_no_layer_loses_rank_that_saves_nothing():
    """At params=0.8, 64 of 64 x 16 are worth splitting long before any of 16 x 16, which is half of them at least."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16), nn.Linear(16, 2))
    small = compress(net, target="params=0.8", by="rank", example=torch.randn(2, 16))
    assert small.costs.parameters <= 0.8 * small.dense.parameters
    assert {type(edit) for edit in small.plan.edits} == {Split}
    assert {edit.layer for edit in small.plan.edits} == {"2", "4"}
    assert torch.equal(small.model[0].weight, net[0].weight)
    assert ("0", "two layers would be smaller only above rank=0.5") in [
        (u.layer, u.reason) for u in small.plan.untouched if not u.note
    ]


def test_square_layers_meet_a_target_too():
    small = compress(chain(16, 16, 16, 16, 2), target="params=0.7", by="rank", example=normal(2, 16))
    assert {type(edit) for edit in small.plan.edits} == {Split}
    assert 0.6 < small.costs.parameters / small.dense.parameters <= 0.7


def test_matrices_of_two_by_two_are_never_split():
    net = nn.Sequential(nn.Conv2d(4, 4, 1, groups=2), nn.Conv2d(4, 32, 3), nn.Conv2d(32, 2, 1))
    small = compress(net, rank=0.5, example=torch.randn(1, 4, 8, 8))
    assert ("0", "two layers would not be smaller at any rank") in [(u.layer, u.reason) for u in small.plan.untouched]
    assert torch.equal(small.model[0].weight, net[0].weight)


def test_layers_of_rank_one_are_listed():
    net = nn.Sequential(nn.Conv2d(4, 4, 3, groups=4), nn.Conv2d(4, 32, 3), nn.Conv2d(32, 2, 1))
    small = compress(net, rank=0.9, example=torch.randn(1, 4, 8, 8))
    assert [(u.layer, u.reason) for u in small.plan.untouched if not u.note] == [
        ("0", "its matrices have rank 1, as those of depthwise convolutions"),
        ("2", "the model's output"),
    ]


def test_layers_whose_weight_is_used_without_a_call_are_listed():
    class Reads(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return self[2](self[1](torch.nn.functional.linear(x, self[0].weight)))

    net = Reads(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2))
    small = compress(net, rank=0.75, example=torch.randn(2, 8))
    assert [(u.layer, u.reason) for u in small.plan.untouched if not u.note] == [
        ("2", "the model's output"),
        ("0", "never called by itself"),
    ]
    assert torch.equal(small.model[0].weight, net[0].weight)


LAYERS = {
    "linear": lambda: nn.Linear(9, 7),
    "linear without bias": lambda: nn.Linear(7, 9, bias=False),
    "convolution": lambda: nn.Conv2d(6, 8, 3, stride=2, padding=1, dilation=2, groups=2, padding_mode="circular"),
    "transposed": lambda: nn.ConvTranspose2d(6, 8, 3, stride=2, output_padding=1, groups=2),
    "sequence": lambda: nn.Conv1d(4, 6, 5, padding="same", bias=False),
}
READ = (
    "in_features", "out_features", "in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups",
    "padding_mode", "output_padding",
)  # fmt: skip


@pytest.mark.parametrize("kind", LAYERS)
def test_models_may_read_from_two_layers_what_they_read_from_one(kind):
    """EdgeNeXt of timm reads weight.device of a layer, others its numbers of features or its weight for a product."""
    layer = LAYERS[kind]().double()
    pair = split(layer, 2)
    for name in READ:
        assert getattr(pair, name, "none") == getattr(layer, name, "none")
    assert (pair.bias is None) == (layer.bias is None)
    assert pair.weight.shape == layer.weight.shape
    assert (pair.weight.dtype, pair.weight.device) == (layer.weight.dtype, layer.weight.device)
    torch.testing.assert_close(as_matrices(layer, pair.weight), truncate(as_matrices(layer), 2))
    assert [name for name, _ in pair.named_parameters()] == [
        "0.weight", "1.weight", *(["1.bias"] if layer.bias is not None else [])
    ]  # fmt: skip
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = pair.nonsense


class Tied(nn.Module):
    """Two layers that share a weight, one that is called twice, and one that is known by two names."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.twin = nn.Linear(16, 16), nn.Linear(16, 16)
        self.twin.weight = self.first.weight
        self.again = nn.Linear(16, 16)
        self.one = nn.Linear(16, 16)
        self.other = self.one
        self.plain = nn.Linear(16, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.twin(torch.relu(self.first(x))))
        x = torch.relu(self.again(torch.relu(self.again(x))))
        x = torch.relu(self.other(torch.relu(self.one(x))))
        return self.head(torch.relu(self.plain(x)))


@pytest.mark.parametrize("calibrated", [False, True])
def test_shared_layers_are_listed_and_unharmed(calibrated):
    net, x = Tied(), torch.randn(64, 16)
    before = copy.deepcopy(net.state_dict())
    small = compress(net, rank=0.75, example=x, calibration=[x] if calibrated else None)
    reasons: dict[str, list[str]] = {}
    for u in small.plan.untouched:
        reasons.setdefault(u.layer, []).append(u.reason)
    assert reasons["first"][0] == "shares its weight with twin"
    assert reasons["twin"][0] == "shares its weight with first"
    assert reasons["one"][0] == "the model knows it by several names"
    new = small.model
    assert new.twin.weight is new.first.weight
    assert new.one is new.other
    assert torch.equal(new.first.weight, before["first.weight"])
    assert torch.equal(new.one.weight, before["one.weight"])
    assert [e.layer for e in small.plan.edits] == ["again", "plain"]
    assert sum(p.numel() for p in new.parameters()) == small.costs.parameters < small.dense.parameters
    with torch.no_grad():  # the one that is called twice is split, and computes the same product both times
        x, y = torch.relu(torch.randn(5, 16)), new.again
        expected = x @ as_matrices(net.again)[0].T
        U = torch.linalg.svd(net.again.weight).U[:, :4]
        if not calibrated:
            torch.testing.assert_close(y(x) - net.again.bias, expected @ U @ U.T, atol=1e-5, rtol=1e-4)


class Dynamic(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return self._conv_forward(x, self.weight * x.mean(), self.bias)


def test_layers_that_compute_otherwise_with_their_weight_are_listed():
    net = nn.Sequential(Dynamic(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.Conv2d(16, 2, 1))
    small = compress(net, rank=0.75, example=torch.randn(1, 3, 8, 8))
    (layer, reason), output = [(u.layer, u.reason) for u in small.plan.untouched if not u.note]
    assert output == ("3", "the model's output")
    assert layer == "0"
    assert reason.startswith("Dynamic has a custom forward")
    assert torch.equal(small.model[0].weight, net[0].weight)


class OnlyNamed(nn.Conv2d):
    """A subclass that computes what its base does, and cannot be constructed like it."""

    def __init__(self, width: int) -> None:
        super().__init__(width, width, 3, padding=1)


def test_a_subclass_by_name_only_is_split_into_plain_layers():
    net = nn.Sequential(OnlyNamed(16), nn.ReLU(), nn.Conv2d(16, 2, 1))
    small = compress(net, rank=0.75, example=torch.randn(1, 16, 8, 8))
    assert [type(m) for m in small.model[0]] == [nn.Conv2d, nn.Conv2d]


def test_rounded_ranks():
    small = compress(chain(48, 48, 48, 4), rank=0.7, round_to=8, example=normal(2, 48))
    assert [e.rank for e in small.plan.edits] == [16, 16]  # 14 lies nearest to 16


@pytest.mark.parametrize("allocation", ["energy", "worst", "global"])
def test_rank_by_other_allocations_removes_about_the_ratio(allocation):
    net = chain(32, 32, 32, 32, 4)
    with torch.no_grad():
        net[0].weight.copy_(normal(32, 2) @ normal(2, 32) + 1e-3 * normal(32, 32))  # nearly of rank 2
    small = compress(net, rank=0.75, allocation=allocation, example=normal(2, 32))
    ranks = {e.layer: e.rank for e in small.plan.edits}
    assert sum(ranks.values()) == pytest.approx(0.25 * 96, abs=3)
    assert ranks["0"] <= 4 < min(ranks["2"], ranks["4"])
