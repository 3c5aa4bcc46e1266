"""Norms over channels that lost some compute what silent channels would leave; residual streams become narrower as a whole."""

from __future__ import annotations

import copy
import importlib

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from compression.following import check, parity
from compression.zoo import OUTPUT, Net, awake
from sparsefw import Sizes, compress, load, save
from sparsefw.compression.structure.counted_norms import CountedNorm, NormForm, norm_form
from sparsefw.compression.structure.removal import removable_channels
from sparsefw.compression.structure.trace import find_channels
from sparsefw.models import build
from vision import require_vision


class LayerNorm2d(nn.LayerNorm):
    """Of a library: channels behind the images."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps).permute(0, 3, 1, 2)


class OwnRMSNorm(nn.Module):
    """Of a library: its own class, another name of eps, no bias."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.variance_epsilon = 1e-3

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)


NORMS = {
    "layer norm": (lambda: nn.LayerNorm(6), False),
    "layer norm without bias": (lambda: nn.LayerNorm(6, bias=False), False),
    "rms norm": (lambda: nn.RMSNorm(6), False),
    "own rms norm": (lambda: OwnRMSNorm(6), False),
    "layer norm 2d": (lambda: LayerNorm2d(6), True),
    "group norm of one group": (lambda: nn.GroupNorm(1, 6), True),
}


@pytest.mark.parametrize("name", NORMS)
def test_what_is_left_is_what_the_whole_norm_computes_beside_silent_channels(name):
    make, images = NORMS[name]
    norm = awake(make()).double().eval()
    draw = torch.Generator().manual_seed(0)
    x = torch.randn((2, 6, 3, 3) if images else (2, 5, 6), generator=draw, dtype=torch.float64) + 0.7
    kept = [0, 2, 5]
    silent = x.clone().movedim(1 if images else -1, 0)
    silent[[1, 3, 4]] = 0
    silent = silent.movedim(0, 1 if images else -1)
    small = CountedNorm(
        nn.Parameter(norm.weight[kept]),
        None if getattr(norm, "bias", None) is None else nn.Parameter(norm.bias[kept]),
        6,
        norm_form(norm),
    )
    chosen = (slice(None), kept) if images else (..., kept)
    torch.testing.assert_close(small(x[chosen]), norm(silent)[chosen], rtol=1e-12, atol=1e-12)


def test_by_hand():
    """Of four channels two are left, 1 and 3: mean 4 / 4 = 1, variance (0 + 4 + 2 * 1) / 4 = 1.5."""
    norm = CountedNorm(nn.Parameter(torch.ones(2)), None, 4, NormForm(-1, True, False, 0.0))
    torch.testing.assert_close(norm(torch.tensor([[1.0, 3.0]])), torch.tensor([[0.0, 2 / 1.5**0.5]]))


@pytest.mark.parametrize("module", [
    nn.LayerNorm(6, elementwise_affine=False), nn.LayerNorm((2, 6)), nn.BatchNorm1d(6), nn.Linear(6, 6),
    nn.LocalResponseNorm(2),
])  # fmt: skip
def test_others_are_no_norms_over_all_channels_with_a_scale_for_each(module):
    assert norm_form(module) is None


def transformer() -> Net:
    """Tokens with positions and a class, one block of attention by hand, and one hidden layer."""

    def run(m: Net, x: Tensor) -> Tensor:
        x = torch.cat([m.token.expand(len(x), -1, -1), m.words(x)], 1) + m.positions
        x = x + m.mix(m.first(x).mean(1, keepdim=True))
        x = x + m.down(F.gelu(m.up(m.second(x))))
        return m.head(m.last(x)[:, 0])

    torch.manual_seed(0)
    return Net(
        run,
        words=nn.Embedding(10, 8),
        token=nn.Parameter(torch.randn(1, 1, 8)),
        positions=nn.Parameter(torch.randn(1, 6, 8)),
        first=nn.LayerNorm(8),
        mix=nn.Linear(8, 8),
        second=nn.RMSNorm(8),
        up=nn.Linear(8, 20),
        down=nn.Linear(20, 8),
        last=nn.LayerNorm(8),
        head=nn.Linear(8, 3),
    )


TOKENS = torch.randint(10, (4, 5), generator=torch.Generator().manual_seed(0))
STREAM = "down.out first.each head.in last.each mix.in mix.out positions.each second.each token.each up.in words.each"


def test_a_residual_stream_becomes_narrower_as_a_whole():
    found = check(awake(transformer()).eval(), TOKENS, {
        STREAM: (8, ""), "down.in up.out": (20, ""), "head.out": (3, OUTPUT),
    })  # fmt: skip
    assert len(found) == 3


def test_it_is_saved_loaded_and_compressed_again(tmp_path):
    model = awake(transformer()).eval()
    small = compress(model, filters=0.5, example=TOKENS)
    assert small.model.words.weight.shape == (10, 4)
    assert isinstance(small.model.first, CountedNorm)
    save(small, tmp_path / "small")
    again = load(tmp_path / "small", lambda: awake(transformer())).model.eval()
    torch.testing.assert_close(again(TOKENS), small.model(TOKENS))
    stream = next(c for c in removable_channels(small.model, TOKENS) if len(c.sites) > 5)
    assert stream.count == 4
    assert parity(small.model, TOKENS, {stream: [1]}) <= 1e-5
    assert small.model.first.count == compress(small.model, filters=0.5, example=TOKENS).model.first.count == 8


def test_a_stream_is_filters_and_not_neurons():
    model = awake(transformer()).eval()
    small = compress(model, neurons=0.5, example=TOKENS)
    assert small.model.words.weight.shape == (10, 8)
    assert small.model.up.weight.shape == (10, 8)


def test_it_is_silenced_in_place_as_it_is_removed():
    model = awake(transformer()).eval()
    sizes = Sizes(model, "filters", example=TOKENS)
    before = copy.deepcopy(model.state_dict())
    with sizes.smaller(0.5):
        silent = model(TOKENS)
    small = compress(model, filters=0.5, example=TOKENS, refit=False)
    torch.testing.assert_close(silent, small.model(TOKENS), rtol=1e-5, atol=1e-6)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), before.values(), strict=True))


def test_following_the_channels_leaves_norms_as_they_are():
    """Looking at their weights is no use of them outside of layers."""
    names = {channels.name for channels in find_channels(transformer(), TOKENS)}
    assert not any(name.startswith(("first.", "second.", "last.")) for name in names)


def test_code_that_reshapes_by_a_number_of_its_own():
    """Such as hidden_dim of torchvision's vision transformer, and the shape of a scale in timm's MetaFormer."""

    class Scale(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.shape = (width, 1, 1)
            self.hidden_dim = width
            self.scale = nn.Parameter(torch.rand(width) + 0.5)

        def forward(self, x: Tensor) -> Tensor:
            return (x * self.scale.view(self.shape)).reshape(-1, self.hidden_dim, 4)

    model = Net(
        lambda m, x: m.head(m.scale(m.stem(x)).mean(2)), stem=nn.Conv2d(3, 6, 1), scale=Scale(6), head=nn.Linear(6, 2)
    )
    check(model, torch.randn(2, 3, 2, 2), {"head.in scale.scale.each stem.out": (6, ""), "head.out": (2, OUTPUT)})


class FrozenBatchNorm2d(nn.Module):
    """As in torchvision's detectors: all of its numbers are buffers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(name, torch.rand(width) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        scale = self.weight * (self.running_var + 1e-5).rsqrt()
        return x * scale.view(-1, 1, 1) + (self.bias - self.running_mean * scale).view(-1, 1, 1)


def test_frozen_batch_norms_lose_channels_like_others():
    def run(m: Net, x: Tensor) -> Tensor:
        return m.head(m.second(m.b(m.first(m.a(x)).relu())).mean((2, 3)))

    torch.manual_seed(0)
    model = Net(
        run,
        a=nn.Conv2d(3, 6, 3),
        first=FrozenBatchNorm2d(6),
        b=nn.Conv2d(6, 8, 3),
        second=FrozenBatchNorm2d(8),
        head=nn.Linear(8, 2),
    )
    x = torch.randn(4, 3, 7, 7)
    check(model.eval(), x, {
        "a.out b.in first.each": (6, ""), "b.out head.in second.each": (8, ""), "head.out": (2, OUTPUT),
    })  # fmt: skip
    sizes = Sizes(model, "filters", example=x)
    assert sizes.needs_passes is None
    with sizes.smaller(0.5):
        silent = model(x)
    sizes.choose(0.5)
    with sizes.side_by_side([0.5]):
        torch.testing.assert_close(model(x)[:2], silent[:2])
    small = compress(model, filters=0.5, example=x, refit=False)
    assert small.model.first.running_var.shape == (3,)
    torch.testing.assert_close(small.model(x), silent, rtol=1e-5, atol=1e-6)


def test_heads_and_the_stream_silence_one_projection_together():
    """Its rows write the stream; heads are silent where values are written."""
    model = awake(build("vit_tiny", width=32, heads=4, depth=1, image=16, patch=4)).eval()
    images = torch.randn(2, 3, 16, 16)
    small = compress(model, filters=0.5, example=images, refit=False)
    with Sizes(model, "filters", example=images).smaller(0.5):
        torch.testing.assert_close(model(images), small.model(images), rtol=1e-5, atol=1e-6)
        weight = model.blocks[0].attention.proj.weight
        assert int(weight.any(1).sum()) == 16
        assert int(model.blocks[0].attention.qkv.weight[64:].any(1).sum()) == 16


def test_a_group_norm_by_hand():
    """Two groups of two channels, of which one each is left: mean 2 / 2 = 1, variance (0 + 1 + 1) / 2 = 1."""
    norm = CountedNorm(nn.Parameter(torch.ones(2)), None, 4, NormForm(1, True, True, 0.0, groups=2))
    torch.testing.assert_close(norm(torch.tensor([[2.0, 4.0]])), torch.tensor([[1.0, 1.0]]))


@pytest.mark.parametrize("last", [False, True])
def test_response_norms_divide_by_the_mean_of_all_channels(last):
    """x + bias + weight x n, n the norm over the image, relative to the mean of these norms over the channels (ConvNeXt V2)."""
    require_vision("timm")
    norm = importlib.import_module("timm.layers.grn").GlobalResponseNorm(6, channels_last=last)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    x = torch.randn(2, 6, 3, 3)
    x[:, [1, 4]] = 0
    with torch.no_grad():
        norm.weight[[1, 4]] = 0
        norm.bias[[1, 4]] = 0
    x = x.movedim(1, -1) if last else x
    form = norm_form(norm)
    assert form is not None
    kept = [0, 2, 3, 5]
    small = CountedNorm(nn.Parameter(norm.weight[kept]), nn.Parameter(norm.bias[kept]), 6, form)
    index = (..., kept) if last else (slice(None), kept)
    torch.testing.assert_close(small(x[index]), norm(x)[index])


def test_norms_with_an_activation_of_their_own():
    """As timm's GroupNormAct: what they call behind themselves is called on."""

    class NormAct(nn.GroupNorm):
        def __init__(self) -> None:
            super().__init__(2, 8)
            self.act = nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            return self.act(super().forward(x))

    model = Net(lambda m, x: m.b(m.norm(m.a(x))), a=nn.Conv2d(3, 8, 1), norm=NormAct(), b=nn.Conv2d(8, 2, 1))
    check(model, torch.randn(2, 3, 4, 4), {"a.out b.in norm.each": (8, ""), "b.out": (2, OUTPUT)})


def test_scales_that_are_added_to_one():
    """As in Gemma: a scale of 0 means 1."""

    class OffsetRMSNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8) / 4)
            self.eps = 1e-6

        def forward(self, x: Tensor) -> Tensor:
            return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * (1 + self.weight)

    form = norm_form(OffsetRMSNorm())
    assert form is not None
    assert form.offset == 1
    model = Net(lambda m, x: m.b(m.norm(m.a(x))), a=nn.Linear(3, 8), norm=OffsetRMSNorm(), b=nn.Linear(8, 2))
    check(model, torch.randn(2, 4, 3), {"a.out b.in norm.each": (8, ""), "b.out": (2, OUTPUT)})
