"""Small networks and inputs for the tests."""

from __future__ import annotations

import torch
from torch import nn

X = torch.randn(4, 3, 10, 10, generator=torch.Generator().manual_seed(0))
BATCHES = [torch.randn(8, 3, 10, 10, generator=torch.Generator().manual_seed(i)) for i in range(3)]
IMAGES = [torch.randn(16, 3, 8, 8, generator=torch.Generator().manual_seed(i)) for i in range(4)]
ROWS = [torch.randn(64, 8, generator=torch.Generator().manual_seed(i)) for i in range(4)]


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))


def cnn() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 4, 3))


def normed(**options) -> nn.Sequential:
    """Convolutions with batch norms and linear layers."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.BatchNorm2d(16), nn.ReLU(),
        nn.AvgPool2d(6), nn.Flatten(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 5),
    )  # fmt: skip
    for module in net:
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.running_mean, std=0.2)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return net.to(**options)


def unnormed() -> nn.Module:
    """Convolutions and linear layers without any norm."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 24, 3), nn.ReLU(), nn.Conv2d(24, 24, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 4),
    )  # fmt: skip
