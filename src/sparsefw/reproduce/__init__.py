"""Every table and figure of the paper as an experiment: our figures beside the paper's, with all deviations listed."""

from __future__ import annotations

from sparsefw.config_base import ConfigError
from sparsefw.reproduce.experiment import Experiment, ExperimentOptions, ExperimentResult
from sparsefw.reproduce.paper_tables import TableExperiment
from sparsefw.reproduce.throughput import ThroughputExperiment
from sparsefw.reproduce.training_figures import EpochExperiment, Quantity, RetrainingExperiment
from sparsefw.reproduce.weight_figures import ContourExperiment, RescalingExperiment, WeightsExperiment
from sparsefw.text import did_you_mean

_SETUPS = {
    "cifar10": "ResNet-18 on CIFAR-10",
    "cifar100": "WideResNet-28x10 on CIFAR-100",
    "tinyimagenet": "ResNet-50 on TinyImageNet",
    "imagenet": "ResNet-50 on ImageNet",
    "cityscapes": "PSPNet on Cityscapes",
}
_ALL: tuple[Experiment, ...] = (
    *(
        TableExperiment(f"filters-{data}", f"Filter pruning, {_SETUPS[data]}", f"filters-{data}", "quick-filters", data)
        for data in ("cifar10", "cifar100", "tinyimagenet", "imagenet")
    ),
    *(
        TableExperiment(f"rank-{data}", f"Low rank, {setup}", f"rank-{data}", "quick-rank", data, has_rates=True)
        for data, setup in _SETUPS.items()
    ),
    ThroughputExperiment("throughput", "Training images per second of the low-rank methods"),
    WeightsExperiment(
        "unstructured",
        "Weights removed after k-support balls and k-sparse polytopes",
        "weights-cifar10",
        "quick-weights",
        "cifar10",
    ),
    ContourExperiment(
        "contour", "k-support balls and k-sparse polytopes over k and w", "weights-cifar10", "quick-weights", "cifar10"
    ),
    RetrainingExperiment("retraining", "Weight decay in training and in retraining, 95 % of the weights removed"),
    EpochExperiment(
        "distance",
        "Relative distance to the network without 70 % of its filters, over the training",
        Quantity.DISTANCE,
    ),
    EpochExperiment("gradients", "Norm of the batch gradient over the training", Quantity.GRADIENT_NORM),
    RescalingExperiment(
        "rescaling", "Steps rescaled by gradients and by diameters", "rescaling-cifar10", "quick-rescaling", "cifar10"
    ),
)
EXPERIMENTS = {experiment.name: experiment for experiment in _ALL}


def find_experiment(name: str) -> Experiment:
    if name not in EXPERIMENTS:
        raise ConfigError(f"reproduce {name!r}{did_you_mean(name, EXPERIMENTS)}; there are {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[name]


__all__ = ["EXPERIMENTS", "Experiment", "ExperimentOptions", "ExperimentResult", "find_experiment"]
