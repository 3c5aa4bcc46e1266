"""Networks as people write and import them, for benchmarks/untuned_defaults.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WORDS = 64  # in the vocabulary of the sequences
LENGTH = 16  # of a sequence


class Residual(nn.Module):
    """An ordinary small residual CNN."""

    def __init__(self, channels: int, width: int = 32, norm: Callable[[int], nn.Module] = nn.BatchNorm2d) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(channels, width, 3, padding=1, bias=False), norm(width), nn.ReLU())
        self.first = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), norm(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False), norm(width),
        )  # fmt: skip
        self.down = nn.Sequential(nn.Conv2d(width, 2 * width, 3, 2, padding=1, bias=False), norm(2 * width), nn.ReLU())
        self.second = nn.Sequential(
            nn.Conv2d(2 * width, 2 * width, 3, padding=1, bias=False), norm(2 * width), nn.ReLU(),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1, bias=False), norm(2 * width),
        )  # fmt: skip
        self.head = nn.Linear(2 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = self.down(F.relu(x + self.first(x)))
        x = F.relu(x + self.second(x))
        return self.head(x.mean((2, 3)))


def plain_cnn(channels: int, side: int) -> nn.Module:
    """A CNN like LeNet, without norms."""
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64 * (side // 4) ** 2, 128), nn.ReLU(),
        nn.Linear(128, 10),
    )  # fmt: skip


def mlp(inputs: int, norm: bool = False) -> nn.Module:
    between = (lambda n: [nn.BatchNorm1d(n), nn.ReLU()]) if norm else (lambda n: [nn.ReLU()])
    return nn.Sequential(
        nn.Flatten(), nn.Linear(inputs, 256), *between(256), nn.Linear(256, 256), *between(256), nn.Linear(256, 10)
    )


def layer_norm_mlp(inputs: int, hidden: int = 4, width: int = 192) -> nn.Module:
    widths = [inputs, *[width] * hidden]
    layers = [part for n, m in pairwise(widths) for part in (nn.Linear(n, m), nn.LayerNorm(m), nn.GELU())]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(width, 10))


def deep_mlp(inputs: int, hidden: int = 6) -> nn.Module:
    """A stack of linear layers without norms, with the initialisation of He et al."""
    widths = [inputs, *[128] * hidden]
    layers = [part for n, m in pairwise(widths) for part in (nn.Linear(n, m), nn.ReLU())]
    return _with_he_initialisation(nn.Sequential(nn.Flatten(), *layers, nn.Linear(128, 10)))


def plain_vgg(channels: int, widths: Sequence[int] = (32, 32, 64, 64, 64, 64)) -> nn.Module:
    """Convolutions of these widths without norms, with the initialisation of He et al."""
    layers: list[nn.Module] = []
    pooled = len(widths) // 3  # convolutions between two poolings
    for i, (n, m) in enumerate(pairwise([channels, *widths]), 1):
        layers += [nn.Conv2d(n, m, 3, padding=1), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if i % pooled == 0 else []
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10)]
    return _with_he_initialisation(nn.Sequential(*layers, *head))


def deep_vgg(channels: int) -> nn.Module:
    """Ten convolutions without norms."""
    return plain_vgg(channels, (16, 16, 32, 32, 32, 48, 48, 48, 64, 64))


def _with_he_initialisation(model: nn.Module) -> nn.Module:
    for layer in model.modules():
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
    return model


def imported(name: str, **arguments: Any) -> nn.Module:
    """Build a network of timm, torchvision or transformers for ten classes."""
    from sparsefw.models import build

    return build(name, num_classes=10, **arguments)


def small_vit(channels: int, image: int, patch: int) -> nn.Module:
    from sparsefw.models.vit import ViT

    return ViT(in_channels=channels, image=image, patch=patch, width=64, depth=3, heads=4, mlp_ratio=2)


def bert() -> nn.Module:
    from sparsefw.models.external import import_torchvision

    import_torchvision()  # transformers imports it, which fails beside a CPU build of torch unless it is prepared
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=WORDS, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256,
        max_position_embeddings=LENGTH, num_labels=4,
    )  # fmt: skip
    return Logits(BertForSequenceClassification(config))


class Logits(nn.Module):
    """A network of transformers that returns its logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x).logits


class TextTransformer(nn.Module):
    """An embedding and the encoder of torch itself."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 64)
        self.positions = nn.Parameter(torch.randn(LENGTH, 64) * 0.1)
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(x) + self.positions).mean(1))


class TextCNN(nn.Module):
    """Convolutions of two widths over embedded words, without norms."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 32)
        self.convolutions = nn.ModuleList(nn.Conv1d(32, 48, width, padding=width // 2) for width in (3, 5))
        self.hidden = nn.Linear(96 * LENGTH, 64)
        self.head = nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).transpose(1, 2)
        x = torch.cat([F.relu(convolution(x)) for convolution in self.convolutions], 1).flatten(1)
        return self.head(F.relu(self.hidden(x)))


class TextGRU(nn.Module):
    """A recurrent layer in both directions, which no kind constrains, and linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 48)
        self.recurrent = nn.GRU(48, 64, batch_first=True, bidirectional=True)
        self.hidden = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU())
        self.head = nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.hidden(self.recurrent(self.embed(x))[0].amax(1)))


class Mixer(nn.Module):
    """An MLP-mixer for 8 x 8 digits: layer norms without attention."""

    def __init__(self, width: int = 48, tokens: int = 16, depth: int = 3) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 2, 2)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm": nn.LayerNorm(width),
                    "mlp": _mlp(tokens, 32),
                    "norm2": nn.LayerNorm(width),
                    "mlp2": _mlp(width, 96),
                }
            )
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = x + block["mlp"](block["norm"](x).transpose(1, 2)).transpose(1, 2)
            x = x + block["mlp2"](block["norm2"](x))
        return self.head(self.norm(x).mean(1))


def _mlp(width: int, hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))


class DenseNet(nn.Module):
    """Every layer reads the outputs of all layers before it; norms come before convolutions."""

    def __init__(self, growth: int = 12, depth: int = 5) -> None:
        super().__init__()
        widths = [16 + i * growth for i in range(depth + 1)]
        self.stem = nn.Conv2d(1, 16, 3, padding=1)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(n), nn.ReLU(), nn.Conv2d(n, growth, 3, padding=1, bias=False))
            for n in widths[:-1]
        )
        self.norm = nn.BatchNorm2d(widths[-1])
        self.head = nn.Linear(widths[-1], 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return self.head(F.relu(self.norm(x)).mean((2, 3)))


class PreActivation(nn.Module):
    """A residual network whose norms precede its convolutions, initialised by fan-out."""

    def __init__(self, channels: int, widths: Sequence[int] = (16, 32)) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, widths[0], 3, padding=1, bias=False)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "first": nn.Sequential(
                        nn.BatchNorm2d(n), nn.ReLU(), nn.Conv2d(n, m, 3, m // n, padding=1, bias=False)
                    ),
                    "second": nn.Sequential(nn.BatchNorm2d(m), nn.ReLU(), nn.Conv2d(m, m, 3, padding=1, bias=False)),
                    "shortcut": nn.Identity() if n == m else nn.Conv2d(n, m, 1, m // n, bias=False),
                }
            )
            for n, m in pairwise([widths[0], *widths])
        )
        self.norm = nn.BatchNorm2d(widths[-1])
        self.head = nn.Linear(widths[-1], 10)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block["shortcut"](x) + block["second"](block["first"](x))
        return self.head(F.relu(self.norm(x)).mean((2, 3)))


class UNet(nn.Module):
    """An encoder and a decoder with skip connections and gates on channels; the class is the mean of its map."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.down = nn.ModuleList(_gated(n, m) for n, m in pairwise([1, width, 2 * width]))
        self.bottom = _gated(2 * width, 4 * width)
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * n, n, 2, 2) for n in (2 * width, width))
        self.merge = nn.ModuleList(_gated(2 * n, n) for n in (2 * width, width))
        self.head = nn.Conv2d(width, 10, 1)

    def forward(self, x: Tensor) -> Tensor:
        skipped = []
        for block in self.down:
            skipped.append(block(x))
            x = F.max_pool2d(skipped[-1], 2)
        x = self.bottom(x)
        for up, merge, skip in zip(self.up, self.merge, reversed(skipped), strict=True):
            x = merge(torch.cat([up(x), skip], 1))
        return self.head(x).mean((2, 3))


def _gated(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), Gate(outputs),
    )  # fmt: skip


class Gate(nn.Module):
    """Multiplies channels by numbers in (0, 1) that depend on the means of all channels (squeeze and excitation)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.numbers = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, channels // 4, 1), nn.ReLU(),
            nn.Conv2d(channels // 4, channels, 1), nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x * self.numbers(x)


def all_convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 48, 3, 2, 1), nn.BatchNorm2d(48), nn.ReLU(),
        nn.Conv2d(48, 48, 3, padding=1), nn.BatchNorm2d(48), nn.ReLU(),
        nn.Conv2d(48, 10, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip
