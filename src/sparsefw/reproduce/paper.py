"""What the paper says, as records: set-ups and tables."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from sparsefw.config_base import Section, parse
from sparsefw.train.config import RunConfig
from sparsefw.train.recipes import read_yaml

SEEDS, VALIDATION = 2, 0.1  # of the paper; it chooses configurations as we do, on validation images
FILE = Path(__file__).with_name("paper.yaml")
Cell = tuple[float, float]  # mean and standard deviation over seeds


class Setup(Section):
    """How the paper trains on a data set; dense: what SGD has there."""

    data: str
    network: str
    epochs: int
    batch_size: int
    lr: float
    momentum: float
    dense: Cell


class PaperTable(Section):
    """A row per method, a cell per ratio removed; rates: training images per second."""

    at: tuple[float, ...]
    rows: dict[str, tuple[Cell, ...]]
    rates: dict[str, float] = Field(default_factory=dict)


class Paper(Section):
    setups: dict[str, Setup]
    throughput: dict[str, dict[str, float]]
    tables: dict[str, PaperTable]


@functools.cache
def paper() -> Paper:
    return parse(Paper, read_yaml(FILE.read_text(), FILE.name), FILE.name)


NETWORKS = {
    "resnet18": "ResNet-18",
    "wide_resnet": "WideResNet-28x10",
    "resnet50": "ResNet-50",
    "pspnet_resnet101": "PSPNet",
}
DATA = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "tinyimagenet": "TinyImageNet",
    "imagenet": "ImageNet-1K",
    "cityscapes": "CityScapes",
}


def deviations(config: RunConfig, setup: Setup, seeds: int, changes: Sequence[str] = ()) -> list[str]:
    """In what a training of ours is not that of the paper, a sentence each. changes: what the user has set."""
    ours = {
        "data": DATA.get(config.data.name, config.data.name),
        "network": NETWORKS.get(config.model.name, config.model.name),
        "epochs": config.train.epochs,
        "batch_size": config.data.batch_size,
        "lr": config.train.lr,
        "momentum": config.train.momentum,
    }
    words = {"batch_size": "batch size", "lr": "learning rate"}
    found = [
        f"{words.get(key, key)}: {value}, the paper {getattr(setup, key)}"
        for key, value in ours.items()
        if value != getattr(setup, key)
    ]
    if (held := config.data.validation) != VALIDATION:
        found.append(f"held out for validation: {held:.0%} of the training images, the paper {VALIDATION:.0%}")
    if seeds != SEEDS:
        found.append(f"{seeds} seed{'s' * (seeds > 1)}, the paper {SEEDS}")
    return [*found, *(f"--set {change}" for change in changes)]
