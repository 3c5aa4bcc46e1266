"""Physical removal: against small networks that are put together by hand from the weights that should remain."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from compression.zoo import Net, awake
from sparsefw.compression import compress
from sparsefw.compression.structure.attention import PlainAttention, from_multihead, plain_attention
from sparsefw.compression.structure.channels import Channels, Side
from sparsefw.compression.structure.layers import call_on_copy, evaluating
from sparsefw.compression.structure.removal import removable_channels, removal_edits, silence, without
from sparsefw.compression.structure.surgery import keep, size, take, zero_filters


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def named(model: nn.Module, inputs: Any, *names: str) -> list[Channels]:
    found = {channels.name: channels for channels in removable_channels(model, inputs)}
    assert not any(found[name].obstacle for name in names)
    return [found[name] for name in names]


def rest(count: int, gone: Sequence[int]) -> list[int]:
    return [i for i in range(count) if i not in gone]


def same(a: Tensor, b: Tensor, tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@torch.no_grad()
def test_a_chain_is_the_network_with_the_other_filters():
    model = awake(nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Conv2d(5, 2, 3))).eval()
    x = torch.randn(2, 3, 8, 8)
    small = without(model, {named(model, x, "0")[0]: [1, 4]})
    kept = [0, 2, 3]
    conv, norm, last = model[0], model[1], model[3]
    by_hand = nn.Sequential(nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 2, 3)).eval()
    by_hand.load_state_dict(
        {
            "0.weight": conv.weight[kept], "0.bias": conv.bias[kept],
            "1.weight": norm.weight[kept], "1.bias": norm.bias[kept], "1.running_mean": norm.running_mean[kept],
            "1.running_var": norm.running_var[kept], "1.num_batches_tracked": norm.num_batches_tracked,
            "3.weight": last.weight[:, kept], "3.bias": last.bias,
        }
    )  # fmt: skip
    assert {n: t.shape for n, t in small.state_dict().items()} == {n: t.shape for n, t in by_hand.state_dict().items()}
    assert str(small) == str(by_hand)
    assert torch.equal(small(x), by_hand(x))


@torch.no_grad()
def test_a_residual_block_by_hand():
    def run(m: Net, x: Tensor) -> Tensor:
        x = m.stem(x)
        return m.head((x + m.two(m.one(x).relu())).mean((2, 3)))

    model = Net(
        run, stem=nn.Conv2d(3, 4, 1), one=nn.Conv2d(4, 6, 3, padding=1), two=nn.Conv2d(6, 4, 1), head=nn.Linear(4, 2)
    )
    x = torch.randn(2, 3, 5, 5)
    stream, middle = named(model, x, "stem + two", "one")
    small = without(model, {stream: [2], middle: [0, 5]})
    s, m = [0, 1, 3], [1, 2, 3, 4]
    y = F.conv2d(x, model.stem.weight[s], model.stem.bias[s])
    z = F.conv2d(y, model.one.weight[m][:, s], model.one.bias[m], padding=1).relu()
    y = y + F.conv2d(z, model.two.weight[s][:, m], model.two.bias[s])
    same(small(x), F.linear(y.mean((2, 3)), model.head.weight[:, s], model.head.bias))


@torch.no_grad()
def test_groups_by_hand():
    """Two groups of 3 -> 2: one input and one output leaves each, and not the same one."""
    model = awake(nn.Sequential(nn.Conv2d(2, 6, 1), nn.Conv2d(6, 4, 3, groups=2), nn.Conv2d(4, 3, 1))).eval()
    x = torch.randn(2, 2, 5, 5)
    inner, outer = named(model, x, "0", "1")
    small = without(model, {inner: [0, 5], outer: [1, 2]})
    first, second, last = model
    y = F.conv2d(x, first.weight, first.bias)
    upper = F.conv2d(y[:, [1, 2]], second.weight[[0]][:, [1, 2]], second.bias[[0]])
    lower = F.conv2d(y[:, [3, 4]], second.weight[[3]][:, [0, 1]], second.bias[[3]])
    same(small(x), F.conv2d(torch.cat([upper, lower], 1), last.weight[:, [0, 3]], last.bias))
    assert (small[1].in_channels, small[1].out_channels, small[1].groups) == (4, 2, 2)
    assert small[1].weight.shape == (2, 2, 3, 3)


@torch.no_grad()
def test_transposed_groups_by_hand():
    model = awake(
        nn.Sequential(nn.Conv2d(2, 6, 1), nn.ConvTranspose2d(6, 4, 3, 2, groups=2), nn.Conv2d(4, 3, 1))
    ).eval()
    x = torch.randn(2, 2, 4, 4)
    inner, outer = named(model, x, "0", "1")
    small = without(model, {inner: [0, 5], outer: [1, 2]})
    first, second, last = model
    y = F.conv2d(x, first.weight, first.bias)
    upper = F.conv_transpose2d(y[:, [1, 2]], second.weight[[1, 2]][:, [0]], second.bias[[0]], stride=2)
    lower = F.conv_transpose2d(y[:, [3, 4]], second.weight[[3, 4]][:, [1]], second.bias[[3]], stride=2)
    same(small(x), F.conv2d(torch.cat([upper, lower], 1), last.weight[:, [0, 3]], last.bias))


@torch.no_grad()
def test_depthwise_with_two_outputs_by_hand():
    model = awake(
        nn.Sequential(nn.Conv2d(2, 3, 1), nn.Conv2d(3, 6, 3, groups=3), nn.Flatten(), nn.Linear(24, 2))
    ).eval()
    x = torch.randn(2, 2, 4, 4)
    small = without(model, {named(model, x, "0")[0]: [1]})
    y = F.conv2d(x, model[0].weight[[0, 2]], model[0].bias[[0, 2]])
    rows = [0, 1, 4, 5]
    y = F.conv2d(y, model[1].weight[rows], model[1].bias[rows], groups=2).flatten(1)
    columns = [*range(8), *range(16, 24)]
    same(small(x), F.linear(y, model[3].weight[:, columns], model[3].bias))


@torch.no_grad()
def test_heads_by_hand():
    """Two heads of size 3 remain of four, in a block like timm's and in one like torch's."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.num_heads, self.head_dim, self.attn_dim = 4, 3, 12
            self.qkv, self.proj = nn.Linear(5, 36), nn.Linear(12, 5)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, self.head_dim)).permute(2, 0, 3, 1, 4)
            return self.proj(
                F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(*x.shape[:2], self.attn_dim)
            )

    fused = awake(Block()).eval()
    plain = PlainAttention(5, 4, 3).eval()
    for i, layer in enumerate((plain.query, plain.key, plain.value)):
        layer.weight.copy_(fused.qkv.weight[12 * i : 12 * i + 12])
        layer.bias.copy_(fused.qkv.bias[12 * i : 12 * i + 12])
    plain.proj.load_state_dict(fused.proj.state_dict())
    x = torch.randn(2, 4, 5)
    model = Net(lambda m, x: m.block(x), block=fused)
    other = Net(lambda m, x: m.block(x, x, x, need_weights=False)[0], block=plain)
    expected = fused.proj.bias.clone().expand(2, 4, 5)
    for head in (1, 2):  # softmax(q k^T / sqrt 3) v, head by head
        q, k, v = (
            F.linear(
                x, fused.qkv.weight[o + 3 * head : o + 3 * head + 3], fused.qkv.bias[o + 3 * head : o + 3 * head + 3]
            )
            for o in (0, 12, 24)
        )
        mixed = (q @ k.mT / 3**0.5).softmax(-1) @ v
        expected = expected + F.linear(mixed, fused.proj.weight[:, 3 * head : 3 * head + 3])
    for net in (model, other):
        (heads,) = (channels for channels in removable_channels(net, x) if channels.is_heads)
        small = without(net, {heads: [0, 3]})
        same(small(x), expected)
        assert small.block.num_heads == 2
        assert net is other or small.block.attn_dim == 6


@torch.no_grad()
def test_silent_channels_are_zero_behind_every_layer_that_writes_them():
    model = awake(nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Conv2d(5, 2, 3))).eval()
    x = torch.randn(2, 3, 8, 8)
    silence(model, removal_edits(model, {named(model, x, "0")[0]: [1, 4]}))
    for depth in (1, 2, 3):
        silent = model[:depth](x).abs().amax((0, 2, 3)) == 0
        assert silent.tolist() == [False, True, False, False, True]


@pytest.mark.parametrize("groups", [1, 2])
def test_zeroed_filters_write_nothing_but_their_bias(groups):
    for layer in (nn.Conv2d(4, 6, 3, groups=groups), nn.ConvTranspose2d(4, 6, 3, groups=groups)):
        zero_filters(layer, [0, 4])
        out = layer(torch.randn(2, 4, 5, 5))
        constant = [bool((out[:, i] == layer.bias[i]).all()) for i in range(6)]
        assert constant == [True, False, False, False, True, False]


@pytest.mark.parametrize(
    ("layer", "side", "count"),
    [
        (nn.Linear(3, 5), Side.OUT, 5),
        (nn.Linear(3, 5), Side.IN, 3),
        (nn.Conv1d(4, 6, 3, groups=2), Side.OUT, 6),
        (nn.Conv1d(4, 6, 3, groups=2), Side.IN, 4),
        (nn.ConvTranspose3d(4, 6, 1), Side.OUT, 6),
        (nn.ConvTranspose3d(4, 6, 1), Side.IN, 4),
        (nn.Conv2d(4, 8, 3, groups=4), Side.EACH, 4),
        (nn.BatchNorm1d(7), Side.EACH, 7),
        (nn.InstanceNorm2d(7, affine=True), Side.EACH, 7),
        (nn.PReLU(6), Side.EACH, 6),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else str(value),
)
def test_sizes_before_and_after(layer, side, count):
    model = nn.ModuleDict({"layer": copy.deepcopy(layer)})
    assert size(model, "layer", side) == count
    keep(model, "layer", side, list(range(0, count, 2)))
    assert size(model, "layer", side) == len(range(0, count, 2))


def test_a_bare_parameter_keeps_its_other_axes():
    model = nn.ParameterDict({"scale": nn.Parameter(torch.arange(4.0).view(1, 4, 1, 1), requires_grad=False)})
    owner = nn.ModuleDict()
    owner.add_module("part", model)
    assert size(owner, "part.scale", Side.EACH) == 4
    keep(owner, "part.scale", Side.EACH, [1, 3])
    assert owner.part["scale"].shape == (1, 2, 1, 1)
    assert owner.part["scale"].flatten().tolist() == [1, 3]
    assert isinstance(owner.part["scale"], nn.Parameter)
    assert not owner.part["scale"].requires_grad


def mixed_network() -> nn.Module:
    return awake(
        nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.PReLU(8),
            nn.Conv2d(8, 8, 3, groups=8),
            nn.Conv2d(8, 12, 3, groups=2),
            nn.ConvTranspose2d(12, 6, 3, groups=2),
            nn.ConvTranspose2d(6, 6, 2, groups=6),
            nn.Flatten(),
            nn.Linear(6 * 81, 4),
        )
    ).eval()


def test_frozen_layers_stay_frozen_and_buffers_buffers():
    model, x = mixed_network(), torch.randn(2, 3, 10, 10)
    for i in (0, 1, 4, 6):
        model[i].requires_grad_(False)
    model[5].bias.requires_grad_(False)
    before = {name: p.requires_grad for name, p in model.named_parameters()}
    small = compress(model, filters=0.5, example=x).model
    assert {name: p.requires_grad for name, p in small.named_parameters()} == before
    assert list(dict(small.named_buffers())) == list(dict(model.named_buffers()))
    assert all(p.is_leaf for p in small.parameters())
    assert small[1].running_mean.shape == (4,)


def test_removed_weights_are_copies():
    model, x = mixed_network(), torch.randn(2, 3, 10, 10)
    small = compress(model, filters=0.5, example=x).model
    theirs = {t.untyped_storage().data_ptr() for t in model.state_dict().values()}
    assert not theirs & {t.untyped_storage().data_ptr() for t in small.state_dict().values()}
    assert all(t.untyped_storage().nbytes() == t.numel() * t.element_size() for t in small.parameters())


def test_channels_last_stays():
    model, x = mixed_network().to(memory_format=torch.channels_last), torch.randn(2, 3, 10, 10)
    small = compress(model, filters=0.5, example=x).model
    for layer in small:
        if isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d)):
            assert layer.weight.is_contiguous(memory_format=torch.channels_last), layer
    plain = compress(mixed_network(), filters=0.5, example=x).model
    assert all(layer.weight.is_contiguous() for layer in plain if hasattr(layer, "weight"))


def test_taking_keeps_the_memory_format():
    dense = torch.randn(6, 4, 3, 3)
    last = dense.to(memory_format=torch.channels_last)
    for axis in (0, 1):
        taken = take(last, axis, [0, 2, 3])
        assert taken.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(taken, take(dense, axis, [0, 2, 3]))
        assert take(dense, axis, [0, 2, 3]).is_contiguous()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions(dtype):
    model, x = mixed_network().to(dtype), torch.randn(2, 3, 10, 10, dtype=dtype)
    small = compress(model, filters=0.5, example=x).model
    assert {t.dtype for t in small.state_dict().values() if t.is_floating_point()} == {dtype}
    assert small(x).shape == (2, 4)


CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "without weights": {"need_weights": False},
    "weights of each head": {"average_attn_weights": False},
    "boolean mask": {"attn_mask": torch.ones(4, 6, dtype=torch.bool).triu(3)},
    "added mask": {"attn_mask": torch.linspace(-1, 1, 24).view(4, 6)},
    "mask of each head": {"attn_mask": torch.linspace(-1, 1, 144).view(6, 4, 6)},
    "padding": {"key_padding_mask": torch.tensor([[False] * 6, [False] * 4 + [True] * 2])},
    "added padding": {"key_padding_mask": torch.linspace(-2, 0, 12).view(2, 6)},
    "mask and padding": {
        "attn_mask": torch.ones(4, 6, dtype=torch.bool).triu(3),
        "key_padding_mask": torch.tensor([[False] * 6, [False] * 4 + [True] * 2]),
    },
    "mask and padding without weights": {
        "attn_mask": torch.ones(4, 6, dtype=torch.bool).triu(3),
        "key_padding_mask": torch.tensor([[False] * 6, [False] * 4 + [True] * 2]),
        "need_weights": False,
    },
    "causal": {"attn_mask": torch.ones(4, 6, dtype=torch.bool).triu(1), "is_causal": True},
}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "sequence first": {"batch_first": False},
    "no bias": {"bias": False},
    "other widths": {"kdim": 5, "vdim": 7},
}


@pytest.mark.parametrize("form", CALLS)
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_plain_attention_is_multihead_attention(kind, form):
    old = awake(nn.MultiheadAttention(9, 3, **{"batch_first": True, **KINDS[kind]})).eval()
    new = from_multihead(old)
    inputs = [torch.randn(2, 4, 9), torch.randn(2, 6, old.kdim), torch.randn(2, 6, old.vdim)]
    if not old.batch_first:
        inputs = [t.transpose(0, 1) for t in inputs]
    for got, expected in zip(new(*inputs, **CALLS[form]), old(*inputs, **CALLS[form]), strict=True):
        assert (got is None) == (expected is None)
        if got is not None:
            same(got, expected, 1e-6)


@pytest.mark.parametrize("form", ["plain", "weights of each head", "boolean mask", "mask of each head", "padding"])
@pytest.mark.parametrize("batch_first", [True, False])
@torch.no_grad()
def test_plain_attention_without_a_batch(form, batch_first):
    old = awake(nn.MultiheadAttention(9, 3, batch_first=batch_first)).eval()
    arguments = dict(CALLS[form])
    if form == "padding":
        arguments["key_padding_mask"] = arguments["key_padding_mask"][1]
    if form == "mask of each head":
        arguments["attn_mask"] = arguments["attn_mask"][:3]
    inputs = torch.randn(4, 9), torch.randn(6, 9), torch.randn(6, 9)
    for got, expected in zip(from_multihead(old)(*inputs, **arguments), old(*inputs, **arguments), strict=True):
        same(got, expected, 1e-6)


def test_plain_attention_drops_what_multihead_attention_drops():
    old = awake(nn.MultiheadAttention(9, 3, dropout=0.4, batch_first=True)).train()
    new = from_multihead(old)
    assert new.training
    inputs = [torch.randn(2, 4, 9)] * 3
    results = []
    for module in (old, new):
        torch.manual_seed(1)
        results.append(module(*inputs))
    for got, expected in zip(*results, strict=True):
        same(got, expected, 1e-6)


def test_plain_attention_refuses_to_guess_a_causal_mask():
    new = PlainAttention(8, 2, 4)
    with pytest.raises(ValueError, match="is_causal needs attn_mask"):
        new(*[torch.randn(2, 3, 8)] * 3, is_causal=True)


def test_plain_attention_keeps_what_was_frozen_its_precision_and_mode():
    old = nn.MultiheadAttention(8, 2, dtype=torch.float64).eval()
    old.in_proj_weight.requires_grad_(False)
    old.out_proj.bias.requires_grad_(False)
    new = from_multihead(old)
    assert not new.training
    assert {p.dtype for p in new.parameters()} == {torch.float64}
    frozen = {name for name, p in new.named_parameters() if not p.requires_grad}
    assert frozen == {"query.weight", "key.weight", "value.weight", "proj.bias"}


def test_every_name_of_an_attention_block_is_replaced():
    shared = nn.MultiheadAttention(8, 2, batch_first=True)
    model = Net(lambda m, x: m.two(m.one(x, x, x)[0], x, x)[0], one=shared, two=shared)
    x = torch.randn(2, 3, 8)
    with evaluating(model):
        expected = call_on_copy(model, x)
    plain = plain_attention(copy.deepcopy(model))
    assert isinstance(plain.one, PlainAttention)
    assert plain.one is plain.two
    with evaluating(plain):
        same(call_on_copy(plain, x), expected, 1e-5)
    assert isinstance(plain_attention(nn.MultiheadAttention(8, 2)), PlainAttention)
