"""What happens to channels between two layers, operation by operation: followed, found out by numbers, or left with a reason."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from compression.following import parity
from compression.zoo import OUTPUT, Net, awake, obstacle_of, table
from sparsefw.compression import compress
from sparsefw.compression.reasons import Cause, because
from sparsefw.compression.structure.labels import Labels, compact
from sparsefw.compression.structure.removal import removable_channels, without
from sparsefw.compression.structure.trace import find_channels

Operation = Callable[[Tensor], Tensor]
SILENCE = "removing them is not the same as silencing them"
FIXED_SIZE = "whose size does not change with them"
BY_POSITION = "code takes them apart by position, and relies on how many there are"
TWO_AXES = "they are laid out as a table, such as groups by channels, of which only whole rows or columns could go"
FEWER = "the model's code does not run with fewer of them: "

KEPT: dict[str, Operation] = {  # each channel for itself, and silent ones stay silent
    "relu": F.relu,
    "relu6": F.relu6,
    "gelu": F.gelu,
    "silu": F.silu,
    "hardswish": F.hardswish,
    "tanh": torch.tanh,
    "leaky relu": F.leaky_relu,
    "elu": F.elu,
    "selu": F.selu,
    "mish": F.mish,
    "softshrink": F.softshrink,
    "hardshrink": F.hardshrink,
    "threshold at 0": lambda x: F.threshold(x, 0.0, 0.0),
    "negated": lambda x: -x,
    "scaled": lambda x: 2 * x / 3,
    "square": lambda x: x**2,
    "signed square root": lambda x: x.sign() * x.abs().sqrt(),
    "clamp": lambda x: x.clamp(-1, 1),
    "in place": lambda x: F.relu(x, inplace=True).mul_(2).add_(x),
    "double and back": lambda x: x.double().float(),
    "dropout": lambda x: F.dropout(x, 0.5, training=False),
    "maximum": lambda x: torch.maximum(x, 0.1 * x),
    "where": lambda x: torch.where(x > 0, x, 0.1 * x),
    "masked": lambda x: x.masked_fill(x < 0, 0.0),
    "max pool": lambda x: F.max_pool2d(x, 2),
    "max pool with indices": lambda x: F.max_pool2d(x, 2, return_indices=True)[0],
    "average pool": lambda x: F.avg_pool2d(x, 3, 1, 1),
    "adaptive average pool": lambda x: F.adaptive_avg_pool2d(x, 2),
    "adaptive max pool": lambda x: F.adaptive_max_pool2d(x, 2),
    "mean over the image": lambda x: x.mean((2, 3), keepdim=True),
    "mean, axes put back": lambda x: x.mean((-1, -2))[:, :, None, None],
    "largest over the image": lambda x: x.amax((2, 3), keepdim=True),
    "norm over the image": lambda x: torch.linalg.vector_norm(x, dim=(2, 3), keepdim=True),
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "bilinear": lambda x: F.interpolate(x, size=7, mode="bilinear", align_corners=True),
    "bicubic": lambda x: F.interpolate(x, size=7, mode="bicubic"),
    "padded by zeros": lambda x: F.pad(x, (1, 1, 1, 1)),
    "padded by reflection": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "padded by replication": lambda x: F.pad(x, (1, 1, 1, 1), mode="replicate"),
    "cropped": lambda x: x[:, :, 1:-1, ::2],
    "cropped by padding": lambda x: F.pad(x, (-1, -1, 0, 0)),
    "rows apart": lambda x: torch.stack(x.unbind(2), 2),
    "channels last and back": lambda x: x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2),
    "as tokens and back": lambda x: x.flatten(2).transpose(1, 2).transpose(1, 2).unflatten(2, (6, 6)),
    "rolled over the image": lambda x: x.roll((1, 2), (2, 3)),
    "in reverse order": lambda x: x.flip(1),
    "joined with itself below": lambda x: torch.cat([x, x.square()], 2),
    "stacked and summed": lambda x: torch.stack([x, x.relu()]).sum(0),
    "softmax over the image": lambda x: x * x.flatten(2).softmax(-1).unflatten(2, (6, 6)),
    "times its own mean": lambda x: x * x.mean((2, 3), keepdim=True).sigmoid(),
    "a gate per place": lambda x: x * torch.linspace(0, 1, 6).view(1, 1, 1, 6),
    "a gate per image": lambda x: x * torch.tensor([1.0, 2.0]).view(2, 1, 1, 1),
    "unit length": lambda x: F.normalize(x, dim=1),
    "a share of the sum": lambda x: x / (1 + x.square().sum(1, keepdim=True)),
    "a scalar": lambda x: x * torch.tensor(3.0),
    "the last for its shape": lambda x: x.relu() if x[:, -1].ndim == 3 else x,
}
CONSTANT: dict[str, Operation] = {  # silent channels become a constant, so that what reads them has to be silent
    "sigmoid": torch.sigmoid,
    "exponential": lambda x: x.exp(),
    "softplus": F.softplus,
    "hardsigmoid": F.hardsigmoid,
    "cosine": torch.cos,
    "plus one": lambda x: x + 1,
    "one over": lambda x: 1 / (1 + x.square()),
    "plus a picture": lambda x: x + torch.ones(1, 1, 6, 6),
    "padded by ones": lambda x: F.pad(x, (1, 0, 0, 1), value=1.0),
}
NOT: dict[str, tuple[Operation, str]] = {  # and the reason
    "softmax": (lambda x: x.softmax(1), "softmax mixes the channels"),
    "log softmax": (lambda x: x.log_softmax(1), "log_softmax mixes the channels"),
    "cumulated": (lambda x: x.cumsum(1), "cumsum mixes the channels"),
    "minus the mean": (lambda x: x - x.mean(1, keepdim=True), "mean mixes the channels"),
    "minus the mean of all": (lambda x: x - x.mean(), "mean mixes the channels"),
    "over the largest": (lambda x: x / x.amax(1, keepdim=True), "amax mixes the channels"),
    "layer norm": (
        lambda x: F.layer_norm(x, x.shape[1:]),
        "what the operation native_layer_norm does to channels is not known",
    ),
    "gated by half": (lambda x: F.glu(x.repeat(1, 2, 1, 1), 1), "what the operation glu does to channels is not known"),
    "convolution": (
        lambda x: F.conv2d(x, torch.ones(8, 8, 1, 1)),
        "what the operation convolution does to channels is not known",
    ),
    "chosen": (lambda x: x[:, [7, 6, 5, 4, 3, 2, 1, 0]], BY_POSITION),
    "sorted": (lambda x: x.sort(1).values, "what the operation sort does to channels is not known"),
    "cut by sizes": (lambda x: torch.cat(x.split([3, 5], 1), 1), BY_POSITION),
    "all but the first": (lambda x: torch.cat([x[:, :1], x[:, 1:].relu()], 1), BY_POSITION),
    "every other": (lambda x: torch.cat([x[:, ::2], x[:, 1::2]], 1), BY_POSITION),
    "one by one": (lambda x: torch.stack(x.unbind(1), 1), BY_POSITION),
    "cropped by padding": (lambda x: torch.cat([F.pad(x, (0, 0, 0, 0, -4, 0)), x[:, :4]], 1), BY_POSITION),
    "rolled": (lambda x: x.roll(1, 1), BY_POSITION),
    "rolled over all": (lambda x: x.roll(1), BY_POSITION),
    "groups of four": (lambda x: x.unflatten(1, (2, 4)).transpose(1, 2).flatten(1, 2), FEWER),
    "a constant": (lambda x: x * torch.linspace(0, 1, 8).view(8, 1, 1), FIXED_SIZE),
    "written into a buffer": (
        lambda x: torch.zeros(2, 8, 6, 6).copy_(x),
        "what the operation copy_ does to channels is not known",
    ),
    "its own transpose": (
        lambda x: (x.flatten(2) @ x.flatten(2).mT @ x.flatten(2)).unflatten(2, (6, 6)),
        "a matrix product sums over the channels",
    ),
    "a size in the code": (lambda x: x.reshape(2, 8, 36).reshape(2, 8, 6, 6), FEWER),
}


def two_layers(operation: Operation) -> Net:
    torch.manual_seed(0)
    return Net(lambda m, x: m.b(operation(m.a(x))), a=nn.Conv2d(3, 8, 3, padding=1), b=nn.Conv2d(8, 4, 1))


def example() -> Tensor:
    return torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", KEPT)
def test_followed(name):
    model, x = two_layers(KEPT[name]), example()
    found = removable_channels(model, x)
    assert table(found) == {"a.out b.in": (8, ""), "b.out": (4, OUTPUT)}
    for gone in ([0], [7], [1, 2, 5], [0, 2, 4, 6, 7]):
        assert parity(model, x, {found[0]: gone}) <= 1e-5


@pytest.mark.parametrize("name", CONSTANT)
def test_channels_that_leave_a_constant_go_with_it(name):
    model, x = two_layers(CONSTANT[name]), example()
    found = removable_channels(model, x)
    assert table(found) == {"a.out b.in": (8, ""), "b.out": (4, OUTPUT)}
    assert found[0].leaves_constant
    silenced = copy.deepcopy(model)
    with torch.no_grad():
        silenced.b.weight[:, [1, 4]] = 0
    torch.testing.assert_close(without(model, {found[0]: [1, 4]})(x), silenced(x))


HALVES: dict[str, Operation] = {  # as many channels of each half have to go
    "cut in two": lambda x: torch.cat(x.chunk(2, 1)[::-1], 1),
    "a part for itself": lambda x: torch.cat([x.chunk(2, 1)[0], x.chunk(2, 1)[1].relu()], 1),
    "sliced": lambda x: torch.cat([x[:, : x.shape[1] // 2].tanh(), x[:, x.shape[1] // 2 :]], 1),
}


@pytest.mark.parametrize("name", HALVES)
def test_halves_lose_the_same_number(name):
    model, x = two_layers(HALVES[name]), example()
    found = removable_channels(model, x)
    assert [obstacle_of(channels) for channels in found] == ["", OUTPUT]
    assert found[0].groups == (0, 0, 0, 0, 1, 1, 1, 1)
    for gone in ([0, 7], [1, 2, 4, 5]):
        assert parity(model, x, {found[0]: gone}) <= 1e-5


def test_halves_that_meet_again_are_one():
    """As in gated linear units: the first half scales the second."""
    model = two_layers(lambda x: torch.mul(*x.chunk(2, 1)))
    model.b = nn.Conv2d(4, 4, 1)
    found = removable_channels(model, example())
    assert table(found) == {"a.outx2 b.in": (4, ""), "b.out": (4, OUTPUT)}
    assert found[0].writers[0].slots == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert parity(model, example(), {found[0]: [2]}) <= 1e-5


class Widths(nn.Module):
    """Two parts of unequal widths, which the module holds."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 4, 1)
        self.widths = (3, 5)

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.a(x).split(self.widths, 1)
        return self.b(torch.cat([second.relu(), first], 1))


def test_widths_that_a_module_holds_follow():
    torch.manual_seed(0)
    model = awake(Widths()).eval()
    found = removable_channels(model, example())
    assert [obstacle_of(channels) for channels in found if channels.writers] == ["", "", OUTPUT]
    first, second = found[:2]
    small = without(model, {first: [0], second: [1, 4]})
    assert small.widths == (2, 3)
    assert model.widths == (3, 5)
    x = example()
    y = model.a(x)
    kept = torch.cat([y[:, [3, 5, 6]].relu(), y[:, [1, 2]]], 1)
    by_hand = F.conv2d(kept, model.b.weight[:, [0, 2, 3, 6, 7]], model.b.bias)
    torch.testing.assert_close(small(x), by_hand)


@pytest.mark.parametrize("name", NOT)
def test_left_with_a_reason(name):
    operation, reason = NOT[name]
    found = removable_channels(two_layers(operation), example())
    rows = [(obstacle_of(channels), site.layer) for channels in found for site in channels.writers]
    assert {layer for _, layer in rows} == {"a", "b"}
    assert all((reason if layer == "a" else OUTPUT) in fixed for fixed, layer in rows), rows


def test_channels_laid_side_by_side_are_one_set_with_several_slots():
    model = two_layers(lambda x: x.repeat(1, 2, 1, 1))
    model.b = nn.Conv2d(16, 4, 1)
    found = removable_channels(model, example())
    assert table(found) == {"a.out b.inx2": (8, ""), "b.out": (4, OUTPUT)}
    assert found[0].readers[0].slots == tuple((i, 8 + i) for i in range(8))
    assert parity(model, example(), {found[0]: [1, 4]}) <= 1e-5


def test_a_constant_beside_the_channels_stays():
    """A map of coordinates, say: the channels before it can go, it cannot."""
    torch.manual_seed(0)
    model = Net(lambda m, x: m.b(torch.cat([m.a(x), x[:, :2]], 1)), a=nn.Conv2d(3, 8, 1), b=nn.Conv2d(10, 4, 1))
    found = removable_channels(model, example())
    assert table(found) == {
        "a.out b.in": (8, ""),
        "b.inx2": (1, "joined with a tensor whose size does not change with them"),
        "b.out": (4, OUTPUT),
    }
    assert parity(model, example(), {found[0]: [0, 5]}) <= 1e-5


def test_padding_of_channels_as_in_the_first_residual_networks():
    """The shortcut halves the image and doubles the channels by padding: those that come from padding must stay."""
    torch.manual_seed(0)

    def run(m: Net, x: Tensor) -> Tensor:
        x = m.stem(x)
        return m.head((m.wide(x) + F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 2, 2))).relu())

    model = Net(run, stem=nn.Conv2d(3, 4, 1), wide=nn.Conv2d(4, 8, 3, 2, 1), head=nn.Conv2d(8, 5, 1))
    found = removable_channels(model, example())
    assert table(found) == {
        "head.in stem.out wide.in wide.out": (4, ""),
        "head.inx4 wide.outx4": (1, "padded to a fixed number of channels"),
        "head.out": (5, OUTPUT),
    }
    assert [site.slots for site in found[0].sites if site.layer == "head"] == [((2,), (3,), (4,), (5,))]
    assert parity(model, example(), {found[0]: [0, 3]}) <= 1e-5


@pytest.mark.parametrize("form", ["matmul", "einsum", "torch"])
def test_attention_of_one_head_pairs_queries_and_keys(form):
    """What queries and keys are summed over goes from both, unless that changes the scale of scores; values go one by one."""
    torch.manual_seed(0)

    def run(m: Net, x: Tensor) -> Tensor:
        q, k, v = m.q(x), m.k(x), m.v(x)
        if form == "torch":
            mixed = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]
        elif form == "matmul":
            mixed = (q @ k.transpose(1, 2) / 2).softmax(-1) @ v
        else:
            mixed = torch.einsum("bij,bjc->bic", torch.einsum("bic,bjc->bij", q, k).softmax(-1), v)
        return m.o(mixed)

    parts = {name: nn.Linear(6, 4) for name in ("q", "k", "v")}
    model, x = Net(run, **parts, o=nn.Linear(4, 3)), torch.randn(2, 5, 6)
    found = removable_channels(model, x)
    reason = SILENCE if form == "torch" else ""
    assert table(found) == {"k.out q.out": (4, reason), "o.in v.out": (4, ""), "o.out": (3, OUTPUT)}
    values = next(channels for channels in found if channels.name == "v")
    assert parity(model, x, {values: [0, 2]}) <= 1e-5


class Heads(nn.Module):
    """Attention by hand; its code holds the number of heads, or finds it, or is written for two."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.q, self.k, self.v, self.o = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 4)
        self.num_heads = 3
        self.width = 6
        self.bias = nn.Parameter(torch.randn(3, 5))
        self.scale = nn.Parameter(torch.randn(3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        shape = {"held": (self.num_heads, 2), "found": (-1, 2), "written": (3, 2)}[self.form]
        q, k, v = (layer(x).unflatten(-1, shape).transpose(1, 2) for layer in (self.q, self.k, self.v))
        table = self.bias[:, (torch.arange(5) - torch.arange(5)[:, None]).abs()]
        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * self.scale + table
        mixed = scores.softmax(-1) @ v
        return self.o(mixed.transpose(1, 2).reshape(len(x), 5, self.width if self.form == "held" else -1))


@pytest.mark.parametrize("form", ["held", "found", "written"])
def test_heads_of_attention_made_by_hand(form):
    """With a scale of each head, and a table of biases by the distance of tokens."""
    torch.manual_seed(0)
    model, x = awake(Heads(form)).eval(), torch.randn(2, 5, 6)
    found = removable_channels(model, x)
    rows = table(found)
    count, reason = rows.pop("bias.rows k.outx2 o.inx2 q.outx2 scale.each v.outx2")
    assert count == 3
    assert rows == {"o.out": (4, OUTPUT)}
    heads = next(channels for channels in found if channels.is_heads)
    if form == "written":
        assert reason.startswith(FEWER)
        assert "in Heads.forward: q, k, v = " in reason
        return
    assert not reason
    small = without(model, {heads: [1]})
    assert (small.num_heads, small.width) == ((2, 4) if form == "held" else (3, 6))  # what the code needs
    assert small.bias.shape == (2, 5)
    silent = copy.deepcopy(model)
    with torch.no_grad():
        silent.o.weight[:, 2:4] = 0
    torch.testing.assert_close(small(x), silent(x))


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("by_hand", [False, True])
def test_keys_and_values_that_all_heads_share_stay(size, by_hand):
    """Two heads of queries; of three channels each, and of as many as there are heads."""
    torch.manual_seed(0)

    def run(m: Net, x: Tensor) -> Tensor:
        q = m.q(x).unflatten(-1, (-1, size)).transpose(1, 2)
        k, v = m.k(x)[:, None], m.v(x)[:, None]
        mixed = (q @ k.mT).softmax(-1) @ v if by_hand else F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        return m.o(mixed.transpose(1, 2).flatten(2))

    model = Net(run, q=nn.Linear(6, 2 * size), k=nn.Linear(6, size), v=nn.Linear(6, size), o=nn.Linear(2 * size, 3))
    x = torch.randn(2, 5, 6)
    found = {channels.name: channels for channels in removable_channels(model, x)}
    assert found["q"].obstacle is None
    assert found["q"].count == 2
    assert {obstacle_of(found[name]) for name in "kv"} == {Cause.USED_BY_MANY.text}
    assert parity(model, x, {found["q"]: [1]}) <= 1e-5


def test_tables_of_biases_that_are_resized():
    """As BEiT does with its biases of attention: rows are mixed with each other, and not heads."""
    torch.manual_seed(0)

    class Resized(Heads):
        def __init__(self) -> None:
            super().__init__("found")
            self.bias = nn.Parameter(torch.randn(4, 3))

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (layer(x).unflatten(-1, (-1, 2)).transpose(1, 2) for layer in (self.q, self.k, self.v))
            table = F.interpolate(self.bias.view(1, 2, 2, -1).permute(0, 3, 1, 2), size=(5, 5), mode="bilinear")
            return self.o(((q @ k.mT + table).softmax(-1) @ v).transpose(1, 2).flatten(2))

    model, x = awake(Resized()).eval(), torch.randn(2, 5, 6)
    found = removable_channels(model, x)
    assert table(found)["bias.each k.outx2 o.inx2 q.outx2 v.outx2"] == (3, "")
    heads = next(channels for channels in found if channels.is_heads)
    assert parity(model, x, {heads: [2]}) <= 1e-5


def test_a_number_that_is_as_large_by_chance_stays():
    """The example has fewer tokens than the network takes: a change of their largest number would not show on it."""
    torch.manual_seed(0)

    class Short(Heads):
        def __init__(self) -> None:
            super().__init__("held")
            self.radius = self.num_heads

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(F.pad(x[:, -self.radius :], (0, 0, 0, 5))[:, :5])

    model = awake(Short()).eval()
    small = compress(model, heads=0.5, example=torch.randn(2, 2, 6)).model
    assert (small.num_heads, small.radius) == (1, 3)


def test_grouped_queries_go_with_their_keys_and_values():
    """Fewer heads of keys and values than of queries: one of these goes with all queries that read it."""
    torch.manual_seed(0)

    def run(m: Net, x: Tensor) -> Tensor:
        heads = [layer(x).unflatten(-1, (-1, 2)).transpose(1, 2) for layer in (m.q, m.k, m.v)]
        return m.o(F.scaled_dot_product_attention(*heads, enable_gqa=True).transpose(1, 2).flatten(2))

    model = Net(run, q=nn.Linear(6, 8), k=nn.Linear(6, 4), v=nn.Linear(6, 4), o=nn.Linear(8, 3))
    x = torch.randn(2, 5, 6)
    found = removable_channels(model, x)
    assert table(found) == {"k.outx2 o.inx4 q.outx4 v.outx2": (2, ""), "o.out": (3, OUTPUT)}
    assert parity(model, x, {found[0]: [0]}) <= 1e-5


def test_tokens_joined_along_their_axis_share_their_channels():
    """A class token before the others: channel i of one is channel i of all."""
    torch.manual_seed(0)
    model = Net(
        lambda m, x: m.b(torch.cat([m.token.expand(2, 1, -1), m.a(x)], 1)),
        token=nn.Parameter(torch.randn(1, 1, 8)),
        a=nn.Linear(3, 8),
        b=nn.Linear(8, 4),
    )
    x = torch.randn(2, 5, 3)
    found = removable_channels(model, x)
    assert table(found) == {"a.out b.in token.each": (8, ""), "b.out": (4, OUTPUT)}
    assert parity(model, x, {found[0]: [1, 6]}) <= 1e-5


def test_levels_of_a_pyramid_read_by_one_head():
    """Feature maps of several sizes, flattened and joined along their places, as detectors do."""
    torch.manual_seed(0)
    model = Net(
        lambda m, x: m.head(torch.cat([m.fine(x).flatten(2), m.coarse(F.avg_pool2d(x, 2)).flatten(2)], 2)),
        fine=nn.Conv2d(3, 6, 1),
        coarse=nn.Conv2d(3, 6, 1),
        head=nn.Conv1d(6, 4, 1),
    )
    found = removable_channels(model, example())
    assert table(found) == {"coarse.out fine.out head.in": (6, ""), "head.out": (4, OUTPUT)}
    assert parity(model, example(), {found[0]: [0, 1, 4]}) <= 1e-5


def test_a_gate_with_one_channel_stays_and_what_it_gates_does_not():
    torch.manual_seed(0)
    model = Net(
        lambda m, x: m.b(m.a(x) * m.gate(x).sigmoid()),
        a=nn.Conv2d(3, 8, 1),
        gate=nn.Conv2d(3, 1, 1),
        b=nn.Conv2d(8, 4, 1),
    )
    found = removable_channels(model, example())
    assert table(found) == {
        "a.out b.in": (8, ""),
        "gate.out": (1, "one number of it scales many channels"),
        "b.out": (4, OUTPUT),
    }
    assert parity(model, example(), {found[0]: [2, 3]}) <= 1e-5


def test_an_outer_product_scales_many_channels_by_each_of_the_fewer():
    torch.manual_seed(0)
    model = Net(
        lambda m, x: m.c((m.a(x)[:, :, None] * m.b(x)[:, None, :]).flatten(1)),
        a=nn.Linear(3, 4),
        b=nn.Linear(3, 5),
        c=nn.Linear(20, 2),
    )
    x = torch.randn(2, 3)
    found = removable_channels(model, x)
    assert table(found) == {
        "a.out": (4, "one number of it scales many channels"),
        "b.out c.inx4": (5, ""),
        "c.out": (2, OUTPUT),
    }
    assert parity(model, x, {found[1]: [0, 3]}) <= 1e-5


@dataclass
class Both:
    first: Tensor
    others: dict[str, Tensor]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda y, z: (y, z),
        lambda y, z: [y, {"deep": (z,)}],
        lambda y, z: {"out": y, "aux": z},
        lambda y, z: Both(y, {"aux": z}),
        lambda y, z: {"both": Both(y, {"aux": z}), "loss": 0.5, "nothing": None},
    ],
    ids=["tuple", "list", "dict", "dataclass", "all of it"],
)
def test_outputs_are_found_wherever_they_are(wrap):
    torch.manual_seed(0)
    model = Net(
        lambda m, x: wrap(m.b(m.a(x)), m.c(m.a(x))), a=nn.Conv2d(3, 8, 1), b=nn.Conv2d(8, 4, 1), c=nn.Conv2d(8, 2, 1)
    )
    found = removable_channels(model, example())
    assert table(found) == {"a.out b.in c.in": (8, ""), "b.out": (4, OUTPUT), "c.out": (2, OUTPUT)}


def error_line(model: nn.Module, inputs: object) -> str:
    with pytest.raises(ValueError) as caught:
        find_channels(model, inputs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_model_that_does_not_run_says_so_in_one_line():
    def fails(m: Net, x: Tensor) -> Tensor:
        raise RuntimeError("sizes do not match\n  at line 3\n  at line 4")

    start = "the model does not run on the example: "
    assert error_line(Net(fails, a=nn.Linear(3, 4)), torch.ones(2, 3)) == start + "RuntimeError: sizes do not match"
    assert error_line(nn.Linear(3, 4), torch.ones(2, 5)).startswith(start + "RuntimeError: ")
    assert error_line(nn.Linear(3, 4), {"y": torch.ones(2, 3)}).startswith(start + "TypeError: ")
    nothing = Net(lambda m, x: "text", a=nn.Linear(3, 4))
    assert error_line(nothing, torch.ones(2, 3)) == start + "TypeError: its output contains no tensors"


def test_labels_are_united_and_keep_the_first_reason():
    labels = Labels()
    a, b, c = labels.fresh(3), labels.fresh(3), labels.fresh(1)
    labels.unite(a, b)
    assert [labels.find(i) for i in b] == [labels.find(i) for i in a]
    first, second, of_one = because(Cause.OUTPUT), because(Cause.TAKEN_APART), because(Cause.SCALES_MANY)
    labels.fix(b[:1], first)
    labels.fix(a[:1], second)
    assert [labels.reason(i) for i in (*a, *b)] == [first, None, None, first, None, None]
    labels.fix(c, of_one)
    labels.unite(a[1:], c)  # one label meets two: all three are one
    assert [labels.reason(i) for i in a] == [first, of_one, of_one]
    assert labels.find(int(a[1])) == labels.find(int(a[2])) == labels.find(int(c[0]))


def test_labels_are_kept_compact():
    columns = np.broadcast_to(np.arange(4).reshape(1, 4, 1), (3, 4, 5))
    assert compact(columns).shape == (1, 4, 1)
    assert compact(np.zeros((3, 4), dtype=np.int64)).shape == (1, 1)
    assert compact(np.arange(6).reshape(2, 3)).shape == (2, 3)
