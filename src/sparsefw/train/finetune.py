"""Fine-tuning over sizes: a network that was trained for one size learns the others in a few epochs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sparsefw.config_base import ConfigError, parse
from sparsefw.train.config import RunConfig
from sparsefw.train.folder import RunFolder
from sparsefw.train.recipes import with_changes

# Of the learning rate of the training: see docs/sizes.md for what other shares do.
LR_SHARE = 0.5


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
    if epochs < 1:
        raise ConfigError(f"epochs={epochs}: must be at least 1")
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
    config = parse(RunConfig, with_changes(values, changes), f"fine-tuning of {run}")
    if config.sizes is None:
        raise ConfigError("sizes=null: fine-tuning is over sizes; `sparsefw train` trains without them")
    return config
