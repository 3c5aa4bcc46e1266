"""Buffers of a user's module with one entry per channel lose entries with the channels."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from compression.networks import IMAGES
from sparsefw import compress, load, save, save_elastic, smaller
from sparsefw.compression.structure.trace import find_channels

WIDTH = 16


class PerChannel(nn.Module):
    """Something done to every channel, by a buffer."""

    def __init__(self, value: Tensor, persistent: bool) -> None:
        super().__init__()
        self.register_buffer("value", value, persistent=persistent)


class Times(PerChannel):
    def forward(self, x: Tensor) -> Tensor:
        return x * self.value


class TimesReshaped(PerChannel):
    def forward(self, x: Tensor) -> Tensor:
        return x * self.value.view(1, -1, 1, 1).to(x.dtype)


class Plus(PerChannel):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.value[:, None, None]


class Filled(PerChannel):
    def forward(self, x: Tensor) -> Tensor:
        return x.masked_fill(self.value[:, None, None], 0.0)


class Standardised(PerChannel):
    """Divides by the root of a variance per channel."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(self.value + 1e-5)[None, :, None, None]


def values(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0)) + 0.5


MAKERS = {
    "scale": lambda persistent: Times(values(WIDTH, 1, 1), persistent),
    "scale of (1, C, 1, 1)": lambda persistent: Times(values(1, WIDTH, 1, 1), persistent),
    "scale of (C,)": lambda persistent: TimesReshaped(values(WIDTH), persistent),
    "mask": lambda persistent: TimesReshaped((values(WIDTH) > 0.7).float(), persistent),
    "mask of bools": lambda persistent: TimesReshaped(values(WIDTH) > 0.7, persistent),
    "places to fill": lambda persistent: Filled(values(WIDTH) > 1.2, persistent),
    "offset": lambda persistent: Plus(values(WIDTH), persistent),
    "variance": lambda persistent: Standardised(values(WIDTH), persistent),
}
EVERY = pytest.mark.parametrize("maker", MAKERS)


def network(maker: str, persistent: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, WIDTH, 3), MAKERS[maker](persistent), nn.ReLU(), nn.Conv2d(WIDTH, WIDTH, 1), nn.ReLU(),
        nn.Conv2d(WIDTH, 4, 1),
    ).eval()  # fmt: skip


def kept_by_hand(net: nn.Sequential) -> list[int]:
    """The half of the first layer's filters with the larger sums of absolute values."""
    return sorted(net[0].weight.abs().sum((1, 2, 3)).topk(WIDTH // 2).indices.tolist())


@EVERY
@pytest.mark.parametrize("persistent", [True, False], ids=["persistent", "not persistent"])
def test_entries_go_with_their_channels(maker, persistent, tmp_path):
    net = network(maker, persistent)
    small = compress(net, filters=0.5, example=IMAGES[0])
    kept = kept_by_hand(net)
    assert small.model[0].out_channels == WIDTH // 2
    assert torch.equal(small.model[1].value.flatten(), net[1].value.flatten()[kept])
    assert isinstance(small.model[1].value, nn.Parameter) is False
    assert small.parity < 1e-6
    save(small, tmp_path / "a")
    with torch.no_grad():
        again = load(tmp_path / "a", lambda: network(maker, persistent))
        assert torch.equal(again.model(IMAGES[0]), small.model(IMAGES[0]))


@EVERY
def test_elastic_folders_and_sizes_in_place_agree(maker, tmp_path):
    net = network(maker)
    small = compress(net, filters=0.5, calibration=IMAGES, refit=False)
    save_elastic(net, tmp_path / "e", "filters", [0.5], calibration=IMAGES, refit=False)
    bare = compress(net, filters=0.5, example=IMAGES[0])
    before = net[1].value.clone()
    with torch.no_grad():
        elastic = load(tmp_path / "e", lambda: network(maker), filters=0.5).model
        torch.testing.assert_close(elastic(IMAGES[0]), small.model(IMAGES[0]))
        with smaller(net, filters=0.5, example=IMAGES[0]):
            torch.testing.assert_close(net(IMAGES[0]), bare.model(IMAGES[0]), rtol=1e-4, atol=1e-5)
    assert torch.equal(net[1].value, before)


def test_a_mask_of_positions_is_not_one_of_channels():
    """Also where there are more positions than channels."""

    class Positions(PerChannel):
        def forward(self, x: Tensor) -> Tensor:
            return x * self.value

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 6), Positions(values(1, 12, 1), True), nn.ReLU(), nn.Linear(6, 3))
    small = compress(net, neurons=0.5, example=torch.randn(2, 12, 8))
    assert small.model[0].out_features == 3
    assert torch.equal(small.model[1].value, net[1].value)


def test_a_table_of_positions_in_a_buffer_is_cut_with_the_stream():
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.embed, self.head = nn.Embedding(20, 16), nn.Linear(16, 3)
            self.register_buffer("table", values(1, 12, 16))

        def forward(self, words: Tensor) -> Tensor:
            return self.head(torch.relu(self.embed(words) + self.table[:, : words.shape[1]]))

    words = torch.randint(0, 20, (2, 9))
    small = compress(Tokens(), filters=0.5, example=words)
    assert small.model.table.shape == (1, 12, 8)
    assert small.parity < 1e-6


@pytest.mark.parametrize("value", [values(3, 1, 1), torch.arange(3.0).view(3, 1, 1)])
def test_constants_of_the_input_stay(value):
    net = nn.Sequential(Times(value, True), nn.Conv2d(3, WIDTH, 3), nn.ReLU(), nn.Conv2d(WIDTH, 4, 1))
    small = compress(net, filters=0.5, example=IMAGES[0])
    assert torch.equal(small.model[0].value, value)
    assert small.model[1].out_channels == WIDTH // 2
    assert all(c.obstacle is not None for c in find_channels(net, IMAGES[0]) if not c.writers)
