"""Residual networks. With stem="imagenet" they load the state dicts of torchvision.

    stem="imagenet"   7x7 convolution of stride 2 and a max pool: images of about 224 x 224, features 32 times smaller
    stem="cifar"      3x3 convolution of stride 1: images of 32 x 32 and less, features 2^(stages - 1) times smaller

A dilated stage keeps its resolution: where a strided stage skips every other position, this one and all after it double
their dilation. At the positions that the strided network keeps, the features are the same: a network may be trained strided
and used dilated.

He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition, arXiv:1512.03385.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sparsefw.models.arguments import require_int, require_one_of
from sparsefw.models.initialisation import initialise

STEMS = ("imagenet", "cifar")


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut.

    Args:
        inputs: channels that the block reads; it writes `width` times `expansion`.
        width: channels of its convolutions.
        stride: of its first 3x3 convolution.
        input_dilation: dilation of its first 3x3 convolution.
        dilation: dilation of all 3x3 convolutions after it.
    """

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int, input_dilation: int, dilation: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, padding=input_dilation, dilation=input_dilation, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, padding=dilation, dilation=dilation, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _shortcut(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += self.downsample(x)
        return self.relu(y)


class Bottleneck(nn.Module):
    """A 3x3 convolution between two 1x1 convolutions. The stride is in the 3x3, as in torchvision, unlike in the paper."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int, input_dilation: int, dilation: int) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        # The block has no second 3x3 convolution: `dilation` is used from the next block on.
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=input_dilation, dilation=input_dilation, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y += self.downsample(x)
        return self.relu(y)


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


Block = type[BasicBlock] | type[Bottleneck]

# Name -> block and blocks per stage.
PLANS: dict[str, tuple[Block, tuple[int, ...]]] = {
    "resnet18": (BasicBlock, (2, 2, 2, 2)),
    "resnet34": (BasicBlock, (3, 4, 6, 3)),
    "resnet50": (Bottleneck, (3, 4, 6, 3)),
    "resnet101": (Bottleneck, (3, 4, 23, 3)),
}


class Trunk(nn.Module):
    """Stem and stages, without a head. The network that adds a head initialises the weights.

    Args:
        block: BasicBlock or Bottleneck.
        layers: blocks per stage; stage i has `width` * 2^i channels, times the expansion of the block.
        stem: "imagenet" or "cifar".
        in_channels: channels of the images.
        width: channels of the stem.
        dilated_stages: how many of the last stages are dilated instead of strided; 2 of 4 give features 8 times smaller.
    """

    def __init__(
        self,
        block: Block,
        layers: Sequence[int],
        *,
        stem: str = "imagenet",
        in_channels: int = 3,
        width: int = 64,
        dilated_stages: int = 0,
    ) -> None:
        super().__init__()
        require_one_of(STEMS, stem=stem)
        require_int(1, in_channels=in_channels, width=width, stages=len(layers))
        require_int(0, dilated_stages=dilated_stages)
        if dilated_stages >= len(layers):
            raise ValueError(
                f"dilated_stages must be less than the number of stages, {len(layers)}, got {dilated_stages}"
            )
        if stem == "imagenet":
            self.conv1 = nn.Conv2d(in_channels, width, 7, stride=2, padding=3, bias=False)
        else:
            self.conv1 = nn.Conv2d(in_channels, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1) if stem == "imagenet" else nn.Identity()
        self.stage_count = len(layers)
        channels = width
        input_dilation = 1
        for i, depth in enumerate(layers):
            dilated = i >= len(layers) - dilated_stages
            stride = 1 if i == 0 or dilated else 2
            dilation = 2 * input_dilation if dilated else input_dilation
            blocks = []
            for _ in range(depth):
                blocks.append(block(channels, width * 2**i, stride, input_dilation, dilation))
                channels = width * 2**i * block.expansion
                stride = 1
                input_dilation = dilation
            self.add_module(f"layer{i + 1}", nn.Sequential(*blocks))
        self.channels = channels

    def stem(self, x: Tensor) -> Tensor:
        return self.maxpool(self.relu(self.bn1(self.conv1(x))))

    def stages(self) -> list[nn.Module]:
        return [getattr(self, f"layer{i + 1}") for i in range(self.stage_count)]


class ResNet(Trunk):
    """A trunk, the mean over all positions, and one linear layer with `classes` outputs."""

    def __init__(
        self,
        block: Block,
        layers: Sequence[int],
        *,
        classes: int = 1000,
        stem: str = "imagenet",
        in_channels: int = 3,
        width: int = 64,
        dilated_stages: int = 0,
    ) -> None:
        require_int(1, classes=classes)
        super().__init__(block, layers, stem=stem, in_channels=in_channels, width=width, dilated_stages=dilated_stages)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(self.channels, classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for stage in self.stages():
            x = stage(x)
        return self.fc(torch.flatten(self.avgpool(x), 1))
