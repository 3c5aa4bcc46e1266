"""Fine-tuning over sizes: a network that was trained for one size, here or elsewhere, learns the others in a few epochs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparsefw.config_base import ConfigError, parse
from sparsefw.kinds import FILTERS
from sparsefw.train.config import RunConfig
from sparsefw.train.folder import RunFolder
from sparsefw.train.given_network import GivenNetwork
from sparsefw.train.recipes import with_changes

# Of the learning rate of the training: see docs/sizes.md for what other shares do.
LR_SHARE = 0.5
GIVEN_LR = 0.02  # of networks whose training is not known


def finetuning(run: Path, epochs: int, kind: str | None = None, changes: Sequence[str] = ()) -> RunConfig:
    """Return the configuration that continues a run for some epochs over sizes, from its trained weights.

    Args:
        run: the folder of a run whose training is over.
        epochs: of the fine-tuning; the learning rate falls from half of the run's to zero along a line.
        kind: of the units to remove; None: the one that the run was prepared for.
        changes: further settings, such as "train.lr=0.02" or "sizes.share=0.75".
    """
    folder = RunFolder(run)
    original = folder.config
    folder.check_model()
    _check_epochs(epochs)
    values = original.plain()
    values["name"] = f"{original.name}-finetuned"
    values["model"]["weights"] = {"file": str(folder.paths.model.resolve())}
    train = original.train
    rest_lr = None if train.rest_lr is None else train.rest_lr * LR_SHARE
    values["train"] |= {
        "epochs": epochs,
        "lr": train.lr * LR_SHARE,
        "rest_lr": rest_lr,
        "schedule": {"kind": "linear"},
        "evaluate_every": 1,
    }
    values["sizes"] = {**(values["sizes"] or {}), "kind": kind or original.curve_kind.name}
    return _over_sizes(values, changes, str(run))


def finetuning_of_weights(
    network: GivenNetwork, checkpoint: Path, epochs: int, kind: str | None = None, changes: Sequence[str] = ()
) -> RunConfig:
    """Return the configuration that trains a network from a file of weights for some epochs over sizes, on a folder of images.

    Args:
        network: the network, given by name.
        checkpoint: the file of its weights.
        epochs: of the fine-tuning; the learning rate falls from GIVEN_LR to zero along a line.
        kind: of the units to remove; None: filters.
        changes: further settings, such as "train.lr=0.02" or "data.batch_size=32".
    """
    _check_epochs(epochs)
    form = network.known_form()
    values: dict[str, Any] = {
        "name": f"{network.name.replace(':', '-')}-finetuned",
        "data": {"name": "folder", "batch_size": 64, "size": form.shape[1:], "mean": form.mean, "std": form.std},
        "model": {**network.record, "weights": {"file": str(checkpoint.resolve())}},
        "method": {"name": "sgd"},
        "train": {
            "epochs": epochs,
            "lr": GIVEN_LR,
            "momentum": 0.9,
            "weight_decay": 5e-4,
            "schedule": {"kind": "linear"},
        },
        "sizes": {"kind": kind or FILTERS.name},
    }
    return _over_sizes(values, changes, network.name)


def _check_epochs(epochs: int) -> None:
    if epochs < 1:
        raise ConfigError(f"epochs={epochs}: must be at least 1")


def _over_sizes(values: dict[str, Any], changes: Sequence[str], owner: str) -> RunConfig:
    config = parse(RunConfig, with_changes(values, changes), f"fine-tuning of {owner}")
    if config.sizes is None:
        raise ConfigError("sizes=null: fine-tuning is over sizes; `sparsefw train` trains without them")
    return config
