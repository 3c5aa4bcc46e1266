"""A small network trained on digits, once per session: what compression is proved on."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from sparsefw.data import load_digits
from sparsefw.models import build


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def small_resnet() -> nn.Module:
    """An untrained ResNet for 1 x 8 x 8 images whose batch norms have statistics of their own."""
    torch.manual_seed(0)
    model = build("resnet_digits", width=8)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.3)
            nn.init.normal_(module.running_mean, std=0.3)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return model.eval()


@pytest.fixture
def batches() -> list[torch.Tensor]:
    """Four calibration batches of real digits."""
    return list(load_digits().images[:256].split(64))


def accuracy(model: nn.Module) -> float:
    """Percent of the test digits that are recognised."""
    images, labels = load_digits("test")
    model.eval()
    with torch.no_grad():
        return 100 * float((model(images).argmax(1) == labels).float().mean())


def train_on_digits(model: nn.Module, optimizer: torch.optim.Optimizer, epochs: int) -> None:
    images, labels = load_digits()
    steps = epochs * len(images.split(64))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    model.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(images)).split(64):
            optimizer.zero_grad()
            functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
            schedule.step()
    model.eval()
