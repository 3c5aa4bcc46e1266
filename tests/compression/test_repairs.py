"""Sets that cannot go as they were found, and go in another form: with others, with fewer numbers, or with more."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from compression.following import parity
from compression.zoo import OUTPUT, awake, obstacle_of
from sparsefw.compression import compress
from sparsefw.compression.structure.channels import Channels, Side, Site
from sparsefw.compression.structure.removal import removable_channels, without
from sparsefw.compression.structure.repairs import in_blocks

TOKENS = torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(0))


class Divided(nn.Module):
    """The size of a head is the width of what attention reads, divided by the number of heads, as in timm's XCiT."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.qkv, self.proj, self.head = nn.Linear(5, 8), nn.Linear(8, 24), nn.Linear(8, 8), nn.Linear(8, 3)
        self.num_heads = 4

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        batch, length, width = x.shape
        shape = batch, length, 3, self.num_heads, width // self.num_heads
        q, k, v = self.qkv(x).reshape(shape).permute(2, 0, 3, 1, 4)
        mixed = (q @ k.mT).softmax(-1) @ v
        return self.head(x + self.proj(mixed.transpose(1, 2).reshape(batch, length, width)))


def test_heads_go_with_blocks_of_the_stream_that_they_read():
    torch.manual_seed(0)
    model = awake(Divided()).eval()
    found = removable_channels(model, TOKENS)
    assert [(channels.count, obstacle_of(channels)) for channels in found] == [(4, ""), (3, OUTPUT)]
    slots = {(site.layer, site.side): site.slots[1] for site in found[0].sites}
    assert slots["stem", Side.OUT] == (2, 3)
    assert slots["qkv", Side.OUT] == (2, 3, 10, 11, 18, 19)
    assert slots["num_heads", Side.COUNT] == (1,)
    for gone in ([0], [1, 3], [0, 1, 2]):
        assert parity(model, TOKENS, {found[0]: gone}) <= 1e-5
    small = compress(model, filters=0.5, example=TOKENS).model
    assert (small.num_heads, small.stem.out_features, small.qkv.out_features) == (2, 4, 12)


class Reduced(nn.Module):
    """A layer is taken to write as many channels as it reads, as those that shorten sequences in PVT and SegFormer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.again = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1)
        self.shorter, self.beside = nn.Conv2d(8, 8, 2, 2), nn.Conv2d(8, 8, 2, 2)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.again(x)
        batch, width, *_ = x.shape
        short = [layer(x).reshape(batch, width, -1) for layer in (self.shorter, self.beside)]
        return self.head((short[0] * short[1].tanh()).mean(2) + x.mean((2, 3)))


def test_layers_as_wide_as_what_they_read_go_with_it():
    torch.manual_seed(0)
    model, x = awake(Reduced()).eval(), torch.randn(2, 3, 4, 4)
    found = removable_channels(model, x)
    assert [(channels.count, obstacle_of(channels)) for channels in found] == [(8, ""), (3, OUTPUT)]
    assert {site.layer for site in found[0].writers} == {"stem", "again", "shorter", "beside"}
    assert parity(model, x, {found[0]: [1, 6]}) <= 1e-5


class Held(nn.Module):
    """It holds a number as large as its width by chance, or checks one that it does not lay out a tensor by."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.stem, self.body, self.head = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1), nn.Linear(8, 3)
        self.extent, self.num_channels = 8, 8

    def forward(self, x: Tensor) -> Tensor:
        if self.form == "by chance" and x.shape[-1] != self.extent:
            raise ValueError("an image of another size")
        x = self.stem(x)
        x = x.view(len(x), x.shape[1], -1).view(len(x), x.shape[1], *x.shape[2:])
        if self.form == "checked" and x.shape[1] != self.num_channels:
            raise ValueError("another number of channels")
        return self.head(F.relu(self.body(x)).mean((2, 3)))


@pytest.mark.parametrize("form", ["by chance", "checked"])
def test_numbers_are_left_or_corrected_as_the_code_needs_it(form):
    torch.manual_seed(0)
    model, x = awake(Held(form)).eval(), torch.randn(2, 3, 8, 8)
    found = removable_channels(model, x)
    assert [obstacle_of(channels) for channels in found] == ["", "", OUTPUT]
    small = without(model, {found[0]: [0, 5]})
    assert (small.extent, small.num_channels) == (8, 8 if form == "by chance" else 6)
    assert small(x).shape == (2, 3)


def test_blocks_by_hand():
    stream = Channels((Site("a", Side.OUT, ((0,), (1,), (2,), (3,))),), (0,) * 4)
    heads = Channels(
        (Site("q", Side.OUT, ((0, 1), (2, 3))), Site("n", Side.COUNT, ((0,), (1,)))), (0, 0), is_heads=True
    )
    blocks = in_blocks(stream, [heads])
    assert blocks is not None
    assert blocks.sites == (
        Site("a", Side.OUT, ((0, 1), (2, 3))),
        Site("q", Side.OUT, ((0, 1), (2, 3))),
        Site("n", Side.COUNT, ((0,), (1,))),
    )
    three = Channels((Site("q", Side.OUT, ((0,), (1,), (2,))),), (0,) * 3, is_heads=True)
    assert in_blocks(stream, [three]) is None
