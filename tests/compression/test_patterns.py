"""Patterns of foreign networks, each in a small one of its own: what can be removed, that it equals silencing, and why not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from compression.following import parity, some
from compression.zoo import Net, obstacle_of
from sparsefw.compression import smaller
from sparsefw.compression.structure.channels import Channels
from sparsefw.compression.structure.removal import removable_channels, without

IMAGE = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))
TOKENS = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(1))
OUTPUT = "the model's output"


def sets_of(model: nn.Module, inputs: Tensor) -> dict[str, Channels]:
    """Return the sets by their names, after a look at whether removing equals silencing, in float64."""
    model = model.double()
    found = removable_channels(model, inputs.double())
    generator = torch.Generator().manual_seed(0)
    for channels in found:
        if channels.obstacle is None:
            removed = some(channels, generator)
            assert parity(model, inputs.double(), {}) + len(removed) > 0
            assert parity(model, inputs.double(), {channels: removed}) <= 1e-10
    return {channels.name: channels for channels in found}


def slots(channels: Channels, layer: str) -> list[tuple[int, ...]]:
    return next(list(site.slots) for site in channels.sites if site.layer == layer)


def convolutions(run, **more: nn.Module | nn.Parameter) -> Net:
    torch.manual_seed(0)
    return Net(run, a=nn.Conv2d(3, 8, 3, padding=1), b=nn.Conv2d(8, 4, 1), **more)


SHUFFLES = {
    "by its shape": lambda x: x.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2),
    "by torch": lambda x: F.channel_shuffle(x, 2),
    "means of groups": lambda x: (x.unflatten(1, (2, -1)) / 2).flatten(1, 2),
}


@pytest.mark.parametrize("name", SHUFFLES)
def test_what_has_the_same_place_in_both_groups_of_a_shuffle_goes_together(name):
    found = sets_of(convolutions(lambda m, x: m.b(SHUFFLES[name](m.a(x)))), IMAGE)
    assert obstacle_of(found["a"]) == ""
    assert slots(found["a"], "a") == [(0, 4), (1, 5), (2, 6), (3, 7)]


def test_channels_that_are_shuffled_and_halved_lose_the_same_places_of_both_halves():
    """The halves of what is left are those of all only where both lose the same places, after each shuffle."""
    torch.manual_seed(0)

    def shuffled(x: Tensor) -> Tensor:
        return x.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)

    def run(m: Net, x: Tensor) -> Tensor:
        left, right = shuffled(m.a(x)).chunk(2, 1)
        return m.b(shuffled(torch.cat([left, m.branch(right).relu()], 1)))

    parts = dict(a=nn.Conv2d(3, 16, 1), branch=nn.Conv2d(8, 8, 1), b=nn.Conv2d(16, 4, 1))
    found = sets_of(Net(run, **parts), IMAGE)
    assert {obstacle_of(channels) for channels in found.values()} == {"", OUTPUT}


def test_what_is_taken_apart_into_halves_and_into_thirds_goes_with_the_same_places_of_all():
    torch.manual_seed(0)

    def run(m: Net, x: Tensor) -> Tensor:
        y = m.a(x)
        thirds = y.chunk(3, 1)
        return m.b(torch.cat(y.chunk(2, 1)[::-1], 1) + torch.cat(thirds[::-1], 1))

    found = sets_of(Net(run, a=nn.Conv2d(3, 12, 1), b=nn.Conv2d(12, 4, 1)), IMAGE)
    assert slots(found["a"], "a") == [(0, 2, 4, 6, 8, 10), (1, 3, 5, 7, 9, 11)]


def test_pixels_of_one_channel_go_together():
    found = sets_of(convolutions(lambda m, x: m.b(F.pixel_unshuffle(F.pixel_shuffle(m.a(x), 2), 2))), IMAGE)
    assert slots(found["a"], "a") == [(0, 1, 2, 3), (4, 5, 6, 7)]


def test_a_channel_may_be_spread_equally_over_the_groups_of_a_layer():
    """Split attention: a grouped layer writes two versions of every channel, which are added."""
    torch.manual_seed(0)
    model = Net(
        lambda m, x: m.b(m.wide(m.a(x)).unflatten(1, (2, -1)).relu().sum(1)),
        a=nn.Conv2d(3, 8, 1),
        wide=nn.Conv2d(8, 12, 3, padding=1, groups=2),
        b=nn.Conv2d(6, 4, 1),
    )
    found = sets_of(model, IMAGE)
    assert slots(found["wide"], "wide") == [(i, i + 6) for i in range(6)]
    assert obstacle_of(found["wide"]) == ""
    assert found["wide"].groups == (0,) * 6


def test_positions_in_an_image_are_cut_along_their_channels():
    positions = nn.Parameter(torch.randn(1, 8, 6, 6))
    found = sets_of(convolutions(lambda m, x: m.b(m.a(x) + m.positions), positions=positions), IMAGE)
    assert obstacle_of(found["a"]) == ""
    assert ("positions", "planes") in {(site.layer, site.side) for site in found["a"].sites}


class Heads(nn.Module):
    """Attention of three heads with a learned bias for each pair of places."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.heads = 3
        self.qkv = nn.Linear(6, 36)
        self.bias = nn.Parameter(torch.randn(3, 5, 5))
        self.proj = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.proj(((q @ k.mT + self.bias).softmax(-1) @ v).transpose(1, 2).flatten(2))


def test_biases_learned_for_every_head_lose_whole_heads():
    found = sets_of(Heads(), TOKENS)
    assert obstacle_of(found["qkv"]) == ""
    assert found["qkv"].count == 3
    assert ("bias", "rows") in {(site.layer, site.side) for site in found["qkv"].sites}


class Direct(nn.Module):
    """A layer whose weight is multiplied with in a function, as attention over windows does."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = nn.Linear(6, 8), nn.Linear(8, 10), nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(F.linear(self.a(x).relu(), self.b.weight, self.b.bias).relu())


def test_a_weight_that_code_multiplies_with_by_itself_is_a_layer():
    model = Direct()
    found = sets_of(model, TOKENS)
    assert {name: obstacle_of(channels) for name, channels in found.items()} == {"a": "", "b": "", "c": OUTPUT}
    small = without(model, {found["a"]: [1, 2], found["b"]: [0, 3, 9]})
    assert small.get_submodule("b").weight.shape == (7, 6)
    hidden = F.linear(model.a(TOKENS.double()).relu()[..., [0, 3, 4, 5, 6, 7]], small.b.weight, small.b.bias)
    kept = [1, 2, 4, 5, 6, 7, 8]
    torch.testing.assert_close(small(TOKENS.double()), F.linear(hidden.relu(), model.c.weight[:, kept], model.c.bias))


class Experts(nn.Module):
    """Two experts in stacks of matrices, each for every other token."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.enter = nn.Linear(6, 8)
        self.up = nn.Parameter(torch.randn(2, 12, 8))
        self.down = nn.Parameter(torch.randn(2, 8, 6))
        self.leave = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        made = []
        for expert in range(2):
            gate, value = F.linear(x[:, expert::2], self.up[expert]).chunk(2, -1)
            made.append(F.linear(gate.relu() * value, self.down[expert]))
        return self.leave(torch.cat(made, 1))


def test_experts_in_stacks_of_matrices_lose_their_channels():
    found = sets_of(Experts(), TOKENS)
    stacks = [channels for channels in found.values() if {s.layer for s in channels.sites} == {"up", "down"}]
    assert [(channels.count, obstacle_of(channels)) for channels in stacks] == [(6, "")]
    assert slots(stacks[0], "up") == [(i, i + 6) for i in range(6)]
    assert obstacle_of(found["enter"]) == ""


def test_what_else_code_does_with_the_weight_of_a_layer_keeps_its_channels():
    """A norm of the weight changes with every channel that goes, and stays where readers alone are silent."""
    found = sets_of(convolutions(lambda m, x: m.b(m.a(x) * m.a.weight.norm())), IMAGE)
    assert obstacle_of(found["a"]) == (
        "the model computes with the weight of a outside of that layer, by linalg_vector_norm"
    )


class Mixer(nn.Module):
    """Tokens that a layer mixes, each channel for itself, with an offset that all channels share."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.tokens, self.norm, self.b = nn.Linear(6, 8), nn.Linear(5, 5), nn.LayerNorm(8), nn.Linear(8, 4)
        nn.init.uniform_(self.norm.weight, 0.5, 1.5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        return self.b(self.norm(x + self.tokens(x.mT).mT))


def test_a_layer_over_tokens_leaves_channels_where_they_are():
    model = Mixer()
    found = sets_of(model, TOKENS)
    assert obstacle_of(found["a"]) == ""
    assert found["a"].leaves_constant
    assert found["a"].reaches_norms
    with (
        pytest.raises(
            ValueError, match=r"^the channels of a are not 0 where they are silent, and norms average over them"
        ),
        smaller(model, filters=0.5, example=TOKENS.double()),
    ):
        pass
    assert obstacle_of(found["tokens"]) == "it mixes positions, such as tokens, and no channels"
    y = model.a(TOKENS.double())
    y = y + model.tokens(y.mT).mT
    y[..., [0, 5]] = 0  # the norm counts what is removed as 0
    expected = F.linear(model.norm(y)[..., [1, 2, 3, 4, 6, 7]], model.b.weight[:, [1, 2, 3, 4, 6, 7]], model.b.bias)
    torch.testing.assert_close(without(model, {found["a"]: [0, 5]})(TOKENS.double()), expected)


def test_a_window_that_slides_over_channels_keeps_them():
    torch.manual_seed(0)
    gate = nn.Conv1d(1, 1, 3, padding=1)
    found = sets_of(
        convolutions(lambda m, x: m.b((y := m.a(x)) * m.gate(y.mean((2, 3))[:, None])[:, 0, :, None, None]), gate=gate),
        IMAGE,
    )
    assert "gate slides a window over them, so that each depends on its neighbours" in map(obstacle_of, found.values())


class OneHead(nn.Module):
    """Attention of a single head, whose size lays out queries and values."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.heads, self.head_dim = 1, 8
        self.q, self.k, self.v, self.proj = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).view(2, 5, self.heads, self.head_dim).transpose(1, 2) for layer in (self.q, self.k, self.v))
        return self.proj(F.scaled_dot_product_attention(q, k, v, scale=0.3).transpose(1, 2).flatten(2))


def test_channels_that_one_number_counts_go_together():
    model = OneHead()
    found = sets_of(model, TOKENS)
    assert found["q + k + v"].count == 8
    assert obstacle_of(found["q + k + v"]) == ""
    assert without(model, {found["q + k + v"]: [0, 7]}).head_dim == 6


def test_parts_of_a_whole_that_a_module_counts():
    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.width = 8
            self.a, self.b = nn.Conv2d(3, 8, 1), nn.Conv2d(4, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            first, second = self.a(x).split(self.width // 2, 1)
            return self.b(first * second)

    model = Halves()
    found = sets_of(model, IMAGE)
    assert obstacle_of(found["a"]) == ""
    assert without(model, {found["a"]: [0]}).width == 6


def test_a_gate_that_is_spread_over_channels_and_places_stays_by_itself():
    """Neither factor is as large as their product: (images, channels, 1, 1) times (images, 1, height, width)."""
    gate = nn.Conv2d(3, 1, 1)
    model = convolutions(lambda m, x: m.b(m.a(x).mean((2, 3), keepdim=True) * m.gate(x)), gate=gate)
    found = sets_of(model, IMAGE)
    assert obstacle_of(found["a"]) == ""
    assert obstacle_of(found["gate"]) == "one number of it scales many channels"


def test_a_failure_names_the_line_and_what_it_says():
    found = sets_of(convolutions(lambda m, x: m.b(m.a(x).reshape(2, 8, 6, 6))), IMAGE)
    reason = obstacle_of(found["a"])
    assert reason.startswith("the model's code does not run with fewer of them: shape '[2, 8, 6, 6]' is invalid")
    assert reason.endswith("in Net.forward: return self.run(self, *args, **kwargs)")


def test_code_that_takes_even_numbers_only_is_found():
    def run(m: Net, x: Tensor) -> Tensor:
        y = m.a(x)
        if y.shape[1] % 2:
            raise ValueError("an even number of channels\nis needed")
        return m.b(y)

    reason = obstacle_of(sets_of(convolutions(run), IMAGE)["a"])
    assert ": an even number of channels, in Net.forward: " in reason
