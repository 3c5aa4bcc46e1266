"""The paper's set-ups and tables, and how a training of ours deviates from them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from sparsefw.config_base import Section, parse
from sparsefw.train.config import RunConfig
from sparsefw.train.recipes import read_yaml_file

SEEDS = 2  # of every configuration that the paper reports
VALIDATION = 0.1  # the part of the training images on which the paper chooses configurations
FILE = Path(__file__).with_name("paper.yaml")
Cell = tuple[float, float]  # mean and standard deviation over seeds


NETWORK_TITLES = {
    "resnet18": "ResNet-18",
    "wide_resnet": "WideResNet-28x10",
    "resnet50": "ResNet-50",
    "pspnet_resnet101": "PSPNet",
}
DATA_TITLES = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "tinyimagenet": "TinyImageNet",
    "imagenet": "ImageNet-1K",
    "cityscapes": "Cityscapes",
}


class Setup(Section):
    """How the paper trains on a data set.

    data, network   their names in recipes
    dense           the figure of SGD before compression
    """

    data: str
    network: str
    epochs: int
    batch_size: int
    lr: float
    momentum: float
    dense: Cell

    @property
    def title(self) -> str:
        return f"{NETWORK_TITLES[self.network]} on {DATA_TITLES[self.data]}"


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
    return parse(Paper, read_yaml_file(FILE, FILE.name), FILE.name)


def find_deviations(config: RunConfig, setup: Setup, seeds: int, changes: Sequence[str] = ()) -> list[str]:
    """Return how a training of ours deviates from the paper's, a phrase each.

    Args:
        config: Our configuration.
        setup: The paper's.
        seeds: How many seeds we train.
        changes: The settings that the user changed, such as "train.epochs=5".
    """
    deviations = []
    if config.data.name != setup.data:
        ours = DATA_TITLES.get(config.data.name, config.data.name)
        deviations.append(f"data: {ours} (paper: {DATA_TITLES[setup.data]})")
    if config.model.name != setup.network:
        ours = NETWORK_TITLES.get(config.model.name, config.model.name)
        deviations.append(f"network: {ours} (paper: {NETWORK_TITLES[setup.network]})")
    numbers = {
        "epochs": (config.train.epochs, setup.epochs),
        "batch size": (config.data.batch_size, setup.batch_size),
        "learning rate": (config.train.lr, setup.lr),
        "momentum": (config.train.momentum, setup.momentum),
        "seeds": (seeds, SEEDS),
    }
    deviations += [f"{name}: {value} (paper: {theirs})" for name, (value, theirs) in numbers.items() if value != theirs]
    validation = config.data.validation
    if validation != VALIDATION:
        deviations.append(f"held out for validation: {validation:.0%} of the training images (paper: {VALIDATION:.0%})")
    return [*deviations, *(f"--set {change}" for change in changes)]
