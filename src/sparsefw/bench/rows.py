"""The rows that can be measured: which form of which method, and on which images."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sparsefw.config_base import ConfigError
from sparsefw.data.locate import VARIABLE
from sparsefw.data.noise import Noise
from sparsefw.methods import METHODS, SGD, Method
from sparsefw.text import did_you_mean
from sparsefw.train.config import RunConfig
from sparsefw.train.engine import COMPILED_STEPS
from sparsefw.train.recipes import load_recipe

MADE_UP_BYTES = 2**27  # of made-up images
LEAST_MADE_UP_BATCHES = 4  # where these are more than that


class Row(NamedTuple):
    """A row of the table: the recipe's sgd variant, trained by a form of a method."""

    method: type[Method]
    settings: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.method.model_fields["name"].default)

    @property
    def label(self) -> str:
        words = {"svd": "(full SVD)", "k": f"k={self.settings.get('k')}"}
        return " ".join([self.method.title, *(words.get(key, str(value)) for key, value in self.settings.items())])

    @property
    def changes(self) -> list[str]:
        return [f"method.{key}={value}" for key, value in {"name": self.name, **self.settings}.items()]


ROWS = {
    form or str(method.model_fields["name"].default): Row(method, settings)
    for method in sorted(METHODS.values(), key=lambda method: method is not SGD)  # which comes first
    for form, settings in method.forms.items()
}
USUAL_ROWS = ("sgd", "filters", "weights", "rank-0.1", "rank-0.3", "nuc-svd")


def chosen_rows(text: str | None) -> list[str]:
    """Turn "filters,nuc" into keys of ROWS, in their order; SGD is always among them, since all others are compared with it."""
    if text is None:
        wanted = list(USUAL_ROWS)
    elif text == "all":
        wanted = list(ROWS)
    else:
        wanted = [name.strip() for name in text.split(",")]
    for name in wanted:
        if name not in ROWS:
            raise ConfigError(f"--rows {name!r}{did_you_mean(name, ROWS)}; there are all, {', '.join(ROWS)}")
    return [name for name in ROWS if name in wanted or name == "sgd"]


def row_config(stem: str, row: Row, data: Path | None, changes: Sequence[str]) -> RunConfig:
    """Configure the training that a row measures, on made-up images where no data are given."""
    config = load_recipe(f"{stem}-sgd", [*row.changes, *changes])
    info = config.data.info()
    if info.make is not None or data is not None or os.environ.get(VARIABLE):
        return config
    if info.task != "classification" or info.classes is None:
        raise ConfigError(f"bench {stem!r}: images of {info.name} have labels that cannot be made up; give --data")
    batch = config.data.batch_size
    shape = image_shape(config)
    batches = max(LEAST_MADE_UP_BATCHES, MADE_UP_BYTES // (batch * math.prod(shape)))
    noise = Noise(shape=shape, classes=info.classes, images=batch * batches)
    # In trainings as long as with all images of the real set, networks are compiled.
    epochs = max(config.train.epochs, math.ceil(COMPILED_STEPS / batches))
    made_up = config.data.model_copy(update={"name": "noise", "noise": noise, "validation": 0.0})
    return config.model_copy(update={"data": made_up, "train": config.train.model_copy(update={"epochs": epochs})})


def image_shape(config: RunConfig) -> tuple[int, int, int]:
    """Tell the channels, height and width of what the network gets."""
    channels, height, width = config.data.info().shape
    return (channels, *(config.data.size or (height, width)))
