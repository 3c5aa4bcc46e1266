"""VGG networks with batch norm. With head="imagenet" they load the state dicts of torchvision.

    head="imagenet"   means over 7 x 7 parts of the image, then three linear layers with dropout: most of the weights
    head="cifar"      the mean over all positions, then one linear layer

Simonyan, Zisserman: Very Deep Convolutional Networks for Large-Scale Image Recognition, arXiv:1409.1556.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sparsefw.models.arguments import require_int, require_one_of
from sparsefw.models.initialisation import initialise

HEADS = ("imagenet", "cifar")

# Name -> 3x3 convolutions per stage.
PLANS: dict[str, tuple[int, ...]] = {
    "vgg11_bn": (1, 1, 2, 2, 2),
    "vgg13_bn": (2, 2, 2, 2, 2),
    "vgg16_bn": (2, 2, 3, 3, 3),
    "vgg19_bn": (2, 2, 4, 4, 4),
}


class VGG(nn.Module):
    """Stages of 3x3 convolutions, each followed by a max pool. Stage i has `width` * 2^i channels, at most 8 times `width`."""

    def __init__(
        self,
        layers: Sequence[int],
        *,
        classes: int = 1000,
        head: str = "imagenet",
        in_channels: int = 3,
        width: int = 64,
    ) -> None:
        super().__init__()
        require_one_of(HEADS, head=head)
        require_int(1, classes=classes, in_channels=in_channels, width=width, stages=len(layers))
        features: list[nn.Module] = []
        channels = in_channels
        for i, depth in enumerate(layers):
            for _ in range(depth):
                outputs = width * 2 ** min(i, 3)
                features += [nn.Conv2d(channels, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
                channels = outputs
            features.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*features)
        self.avgpool = nn.AdaptiveAvgPool2d(7 if head == "imagenet" else 1)
        self.classifier: nn.Module
        if head == "imagenet":
            self.classifier = _linear_layers(channels * 7 * 7, 64 * width, classes)
        else:
            self.classifier = nn.Linear(channels, classes)
        initialise(self)
        for module in self.classifier.children():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0, 0.01)
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


def _linear_layers(inputs: int, width: int, classes: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, width), nn.ReLU(inplace=True), nn.Dropout(),
        nn.Linear(width, width), nn.ReLU(inplace=True), nn.Dropout(),
        nn.Linear(width, classes),
    )  # fmt: skip
