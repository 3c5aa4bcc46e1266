"""Small networks and their training, for tests of the optimizer."""

from __future__ import annotations

import torch
from torch import nn

from catalog import gaussian
from sparsefw import SFW
from sparsefw import geometry as geo
from sparsefw.optim import Horizon

KINDS = ["filters", "rank", "weights", "neurons", "2:4"]


def cnn(width: int = 16) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10),
    )  # fmt: skip


def train(model: nn.Module, optimizer: SFW, steps: int, start: int = 0) -> None:
    for step in range(start, start + steps):
        optimizer.zero_grad()
        x, y = gaussian((8, 3, 6, 6), step, torch.float32), torch.arange(8) % 10
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def single_weight(region: geo.Ball, rule: Horizon, theta: torch.Tensor, lr: float = 0.1) -> tuple[nn.Parameter, SFW]:
    p = nn.Parameter(theta.clone())
    return p, SFW([{"params": [p], "region": region, "rescale": rule}], lr=lr)
