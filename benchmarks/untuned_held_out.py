"""Networks that were written to try the defaults, and not to choose them, for benchmarks/untuned_pairs.py."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from untuned_networks import LENGTH, WORDS


class WaveNet(nn.Module):
    """Dilated causal convolutions with gated activations and skip connections, without norms."""

    def __init__(self, width: int = 32, depth: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        self.filters = nn.ModuleList(nn.Conv1d(width, width, 2, dilation=2**i) for i in range(depth))
        self.gates = nn.ModuleList(nn.Conv1d(width, width, 2, dilation=2**i) for i in range(depth))
        self.merges = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(depth))
        self.head = nn.Conv1d(width, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).transpose(1, 2)
        skipped = torch.zeros_like(x)
        for i, (convolution, gate, merge) in enumerate(zip(self.filters, self.gates, self.merges, strict=True)):
            past = F.pad(x, (2**i, 0))
            merged = merge(torch.tanh(convolution(past)) * torch.sigmoid(gate(past)))
            skipped = skipped + merged
            x = x + merged
        return self.head(F.relu(skipped)).mean(2)


class GPT(nn.Module):
    """A causal transformer; the last token answers."""

    def __init__(self, width: int = 64, depth: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        self.positions = nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(_Block(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x) + self.positions.weight
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, -1])


class _Block(nn.Module):
    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.attend = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.grow = nn.Linear(width, 4 * width)
        self.shrink = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.attend(self.norm1(x)).chunk(3, 2)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).flatten(2))
        return x + self.shrink(F.gelu(self.grow(self.norm2(x))))


class TextLSTM(nn.Module):
    """Two recurrent layers, whose last states linear layers classify."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        self.recurrent = nn.LSTM(width, width, 2, batch_first=True)
        self.hidden = nn.Linear(width, 128)
        self.head = nn.Linear(128, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.hidden(self.recurrent(self.embed(x))[0][:, -1])))


class GraphMLP(nn.Module):
    """Pixels of 8 x 8 digits as nodes of a grid, which average over their neighbours between linear layers."""

    def __init__(self, width: int = 48, depth: int = 3) -> None:
        super().__init__()
        self.read = nn.Linear(3, width)
        self.layers = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.hidden = nn.Linear(width, 64)
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        count, _, rows, columns = x.shape
        places = torch.stack(
            torch.meshgrid(torch.linspace(-1, 1, rows), torch.linspace(-1, 1, columns), indexing="ij")
        ).to(x)
        nodes = self.read(torch.cat([x, places.expand(count, -1, -1, -1)], 1).permute(0, 2, 3, 1))
        for layer, norm in zip(self.layers, self.norms, strict=True):
            around = F.avg_pool2d(nodes.permute(0, 3, 1, 2), 3, 1, 1).permute(0, 2, 3, 1)
            nodes = nodes + F.relu(norm(layer(torch.cat([nodes, around], 3))))
        return self.head(F.relu(self.hidden(nodes.flatten(1, 2).amax(1))))


class SmallUNet(nn.Module):
    """A U-Net with group norms; the class is the mean of its map."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.down = _normed(1, width)
        self.bottom = nn.Sequential(nn.MaxPool2d(2), _normed(width, 2 * width), _normed(2 * width, 2 * width))
        self.merge = _normed(3 * width, width)
        self.head = nn.Conv2d(width, 10, 1)

    def forward(self, x: Tensor) -> Tensor:
        skipped = self.down(x)
        x = F.interpolate(self.bottom(skipped), scale_factor=2)
        return self.head(self.merge(torch.cat([x, skipped], 1))).mean((2, 3))


class ConcatUNet(nn.Module):
    """A U-Net with group norms and a transposed convolution; a linear layer answers."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first = _rectified(1, width)
        self.second = _rectified(width, 2 * width)
        self.bottom = _rectified(2 * width, 4 * width)
        self.up = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.merge = _rectified(4 * width, 2 * width)
        self.head = nn.Linear(2 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        skipped = self.second(F.max_pool2d(self.first(x), 2))
        x = self.up(self.bottom(F.max_pool2d(skipped, 2)))
        return self.head(self.merge(torch.cat([x, skipped], 1)).mean((2, 3)))


def group_norm_cnn() -> nn.Module:
    """Four convolutions with group norms."""
    return nn.Sequential(
        _rectified(1, 16, 2), _rectified(16, 32), _rectified(32, 32, 2), _rectified(32, 64),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


def _rectified(inputs: int, outputs: int, stride: int = 1) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1), nn.GroupNorm(4, outputs), nn.ReLU())


def _normed(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.SiLU())


def selu_cnn() -> nn.Module:
    """Five convolutions without norms, whose activations and initialisation normalise themselves."""
    model = nn.Sequential(
        nn.Conv2d(1, 24, 3, 2, 1), nn.SELU(), nn.Conv2d(24, 32, 3, padding=1), nn.SELU(),
        nn.Conv2d(32, 48, 3, 2, 1), nn.SELU(), nn.Conv2d(48, 48, 3, padding=1), nn.SELU(),
        nn.Conv2d(48, 64, 3, 2, 1), nn.SELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="linear")
            nn.init.zeros_(layer.bias)
    return model


class InstanceNormed(nn.Module):
    """A residual CNN with instance norms."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, width, 3, padding=1), nn.InstanceNorm2d(width, affine=True), nn.ELU(),
                nn.Conv2d(width, width, 3, padding=1), nn.InstanceNorm2d(width, affine=True),
            )
            for _ in range(3)
        )  # fmt: skip
        self.head = nn.Linear(4 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = F.elu(x + block(x))
        return self.head(F.adaptive_max_pool2d(x, 2).flatten(1))


class Inverted(nn.Module):
    """Wide, depthwise and narrow convolutions, as in MobileNetV2."""

    def __init__(self, width: int = 16, depth: int = 4) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width))
        wide = 4 * width
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
                nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
                nn.Conv2d(wide, width, 1, bias=False), nn.BatchNorm2d(width),
            )
            for _ in range(depth)
        )  # fmt: skip
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.mean((2, 3)))


class DeepSets(nn.Module):
    """Linear layers for every word, their mean, and linear layers behind it."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        self.positions = nn.Parameter(torch.randn(LENGTH, width))
        self.words = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.words(self.embed(x) + self.positions).mean(1))


class DilatedCNN(nn.Module):
    """Dilated convolutions over embedded words, with batch norms."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        self.layers = nn.Sequential(
            *(
                part
                for dilation in (1, 2, 4)
                for part in (
                    nn.Conv1d(width, width, 3, padding=dilation, dilation=dilation), nn.BatchNorm1d(width), nn.GELU(),
                )
            )
        )  # fmt: skip
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.embed(x).transpose(1, 2)).amax(2))


class Decoder(nn.Module):
    """An encoder and a decoder of transposed convolutions with batch norms; the class is the mean of its map."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, 2, 1), nn.BatchNorm2d(2 * width), nn.ReLU(),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU(),
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.ConvTranspose2d(width, width, 4, 2, 1), nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, 10, 1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).mean((2, 3))


class ConvMixer(nn.Module):
    """Patches, then depthwise and pointwise convolutions, each with a batch norm."""

    def __init__(self, width: int = 32, depth: int = 3) -> None:
        super().__init__()
        self.patches = nn.Sequential(nn.Conv2d(1, width, 4, 4), nn.GELU(), nn.BatchNorm2d(width))
        self.across = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 5, padding=2, groups=width), nn.GELU(), nn.BatchNorm2d(width))
            for _ in range(depth)
        )
        self.along = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 1), nn.GELU(), nn.BatchNorm2d(width)) for _ in range(depth)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x)
        for across, along in zip(self.across, self.along, strict=True):
            x = along(x + across(x))
        return self.head(x.mean((2, 3)))


class GatedResidual(nn.Module):
    """Residual blocks with batch norms, whose outputs are gated by their own means."""

    def __init__(self, width: int = 24, depth: int = 2) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
                nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width),
            )
            for _ in range(depth)
        )  # fmt: skip
        self.gates = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, 6, 1), nn.ReLU(), nn.Conv2d(6, width, 1), nn.Hardsigmoid())
            for _ in range(depth)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block, gate in zip(self.blocks, self.gates, strict=True):
            inside = block(x)
            x = F.relu(x + inside * gate(inside.mean((2, 3), keepdim=True)))
        return self.head(x.mean((2, 3)))


class AttentionPooling(nn.Module):
    """Linear layers for every word, whose outputs are averaged with weights that depend on them."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        self.positions = nn.Parameter(0.1 * torch.randn(LENGTH, width))
        self.values = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))
        self.scores = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x) + self.positions
        return self.head((self.scores(x).softmax(1) * self.values(x)).sum(1))


def normed_cnn() -> nn.Module:
    """Two convolutions with batch norms and a large linear layer with one."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, 2), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 5, 2), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Flatten(), nn.Linear(512, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 10),
    )  # fmt: skip
