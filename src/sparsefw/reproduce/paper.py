"""The paper's set-ups and tables, and how a training of ours deviates from them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from sparsefw.config_base import Section, parse
from sparsefw.text import counted
from sparsefw.train.config import RunConfig
from sparsefw.train.recipes import read_yaml

# The paper chooses configurations as we do, on validation images.
SEEDS = 2
VALIDATION = 0.1
FILE = Path(__file__).with_name("paper.yaml")
Cell = tuple[float, float]  # mean and standard deviation over seeds


class Setup(Section):
    """How the paper trains on a data set; dense: the figure of SGD before compression."""

    data: str
    network: str
    epochs: int
    batch_size: int
    lr: float
    momentum: float
    dense: Cell


class PaperTable(Section):
    """A table with a row per method and a cell per removed ratio; rates: training images per second."""

    at: tuple[float, ...]
    rows: dict[str, tuple[Cell, ...]]
    rates: dict[str, float] = Field(default_factory=dict)


class Paper(Section):
    """The content of paper.yaml; throughput: images per second by method and data set."""

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


def find_deviations(config: RunConfig, setup: Setup, seeds: int, changes: Sequence[str] = ()) -> list[str]:
    """Return how a training of ours deviates from the paper's, a sentence each; changes: what the user has set."""
    ours = {
        "data": DATA.get(config.data.name, config.data.name),
        "network": NETWORKS.get(config.model.name, config.model.name),
        "epochs": config.train.epochs,
        "batch_size": config.data.batch_size,
        "lr": config.train.lr,
        "momentum": config.train.momentum,
    }
    names = {"batch_size": "batch size", "lr": "learning rate"}
    deviations = [
        f"{names.get(key, key)}: {value}, the paper {getattr(setup, key)}"
        for key, value in ours.items()
        if value != getattr(setup, key)
    ]
    validation = config.data.validation
    if validation != VALIDATION:
        deviations.append(
            f"held out for validation: {validation:.0%} of the training images, the paper {VALIDATION:.0%}"
        )
    if seeds != SEEDS:
        deviations.append(f"{counted(seeds, 'seed')}, the paper {SEEDS}")
    return [*deviations, *(f"--set {change}" for change in changes)]
