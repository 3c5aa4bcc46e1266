"""PSPNet: a class for every pixel, from features that are pooled at four scales.

Zhao, Shi, Qi, Wang, Jia: Pyramid Scene Parsing Network, arXiv:1612.01105.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparsefw.models.arguments import require_int
from sparsefw.models.initialisation import initialise
from sparsefw.models.resnet import Block, Trunk

BINS = (1, 2, 3, 6)
DROPOUT = 0.1


class PyramidPooling(nn.Module):
    """Concatenate the features with their means over 1, 2 x 2, 3 x 3 and 6 x 6 parts of the image."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            nn.Sequential(nn.AdaptiveAvgPool2d(bins), *_convolution(channels, channels // len(BINS), 1))
            for bins in BINS
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, *(_resized(branch(x), x) for branch in self.branches)], dim=1)


class PSPNet(nn.Module):
    """A ResNet of output stride 8, pyramid pooling and a head; while training also a head on the stage before the last.

    In training mode `forward` returns (output, auxiliary), in evaluation mode the output alone: logits of the input's height
    and width. Training needs at least two images in a batch: the norm after the coarsest mean gets one value per image.

    Widths are fractions of the ResNet's channels. ResNet-101 has the published ones: 512 channels per branch and in the
    head, 256 in the auxiliary head.
    """

    def __init__(
        self, block: Block, layers: Sequence[int], *, classes: int = 19, in_channels: int = 3, width: int = 64
    ) -> None:
        super().__init__()
        require_int(1, classes=classes)
        self.backbone = Trunk(block, layers, in_channels=in_channels, width=width, dilated_stages=2)
        channels = self.backbone.channels
        self.pyramid = PyramidPooling(channels)
        self.head = _head(2 * channels, channels // 4, classes)
        self.auxiliary = _head(channels // 2, channels // 8, classes)
        initialise(self)

    def forward(self, image: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        features = self.backbone.stem(image)
        before_last = features
        for stage in self.backbone.stages():
            before_last = features
            features = stage(features)
        output = _resized(self.head(self.pyramid(features)), image)
        if not self.training:
            return output
        return output, _resized(self.auxiliary(before_last), image)


def _convolution(inputs: int, outputs: int, size: int) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=False)
    return [convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]


def _head(inputs: int, width: int, classes: int) -> nn.Sequential:
    return nn.Sequential(*_convolution(inputs, width, 3), nn.Dropout2d(DROPOUT), nn.Conv2d(width, classes, 1))


def _resized(x: Tensor, like: Tensor) -> Tensor:
    # Features of stride 8 are centred on pixels 0, 8, ..., 8n of an image with 8n + 1: corners coincide.
    return F.interpolate(x, size=like.shape[-2:], mode="bilinear", align_corners=True)
