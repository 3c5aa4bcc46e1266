"""Wide residual networks for small images: three stages of few blocks with many channels.

Zagoruyko, Komodakis: Wide Residual Networks, arXiv:1605.07146.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sparsefw.models.arguments import require_blocks, require_int
from sparsefw.models.initialisation import initialise


class PreActivationBlock(nn.Module):
    """Two 3x3 convolutions, each after a norm and a ReLU, and a shortcut without either.

    Where the shape changes, the shortcut is a 1x1 convolution of the input after the first norm and ReLU.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        same = stride == 1 and inputs == outputs
        self.shortcut = None if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = self.relu(self.bn1(x))
        y = self.conv2(self.relu(self.bn2(self.conv1(active))))
        y += x if self.shortcut is None else self.shortcut(active)
        return y


class WideResNet(nn.Module):
    """WideResNet-`depth`x`widen`: depth is 4 plus a multiple of 6; the stages have 16, 32 and 64 times `widen` channels."""

    def __init__(self, *, classes: int = 100, depth: int = 28, widen: int = 10, in_channels: int = 3) -> None:
        super().__init__()
        require_int(1, classes=classes, widen=widen, in_channels=in_channels)
        require_int(10, depth=depth)
        require_blocks(depth=depth)
        if depth % 6 != 4:
            raise ValueError(f"depth must be 4 plus a multiple of 6, such as 10, 16, 22, 28, 40, got {depth}")
        self.conv1 = nn.Conv2d(in_channels, 16, 3, padding=1, bias=False)
        self.layer1 = _stage(16, 16 * widen, 1, depth // 6)
        self.layer2 = _stage(16 * widen, 32 * widen, 2, depth // 6)
        self.layer3 = _stage(32 * widen, 64 * widen, 2, depth // 6)
        self.bn = nn.BatchNorm2d(64 * widen)
        self.relu = nn.ReLU(inplace=True)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(64 * widen, classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(self.conv1(x))))
        return self.fc(torch.flatten(self.avgpool(self.relu(self.bn(x))), 1))


def _stage(inputs: int, outputs: int, stride: int, depth: int) -> nn.Sequential:
    first = PreActivationBlock(inputs, outputs, stride)
    return nn.Sequential(first, *(PreActivationBlock(outputs, outputs, 1) for _ in range(depth - 1)))
