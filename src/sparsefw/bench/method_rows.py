"""The rows of the speed table: which form of which method is measured, and on which images."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sparsefw.config_base import ConfigError
from sparsefw.data.data_folder import DATA_VARIABLE
from sparsefw.data.noise import Noise
from sparsefw.kinds import FILTERS, WEIGHTS
from sparsefw.methods import METHODS, SGD, Method
from sparsefw.methods.base import method_name
from sparsefw.text import did_you_mean
from sparsefw.train.config import TAUGHT, RunConfig
from sparsefw.train.engine import COMPILED_STEPS
from sparsefw.train.recipes import baseline_of, load_recipe

NOISE_BYTES = 2**27  # of random images
MIN_NOISE_BATCHES = 4  # even where these are more bytes


class MethodRow(NamedTuple):
    """A form of a method: the sgd variant of a recipe is trained by `method` with these settings.

    sizes   the settings of a training over sizes; None: it is none
    """

    method: type[Method]
    settings: Mapping[str, Any]
    sizes: Mapping[str, Any] | None = None

    @property
    def name(self) -> str:
        return method_name(self.method)

    @property
    def label(self) -> str:
        """The title of the method and its settings, for tables."""
        words = {"svd": "(full SVD)", "k": f"k={self.settings.get('k')}"}
        settings = [words.get(key, str(value)) for key, value in self.settings.items()]
        objective = [] if self.sizes is None else ["over sizes, taught" if self.sizes else "over sizes"]
        return " ".join([self.method.title, *settings, *objective])

    @property
    def changes(self) -> list[str]:
        """The changes of a recipe that select this row."""
        changes = [f"method.{key}={value}" for key, value in {"name": self.name, **self.settings}.items()]
        return changes if self.sizes is None else [*changes, f"sizes={json.dumps(dict(self.sizes))}"]


ROWS = {
    form or method_name(method): MethodRow(method, settings)
    for method in sorted(METHODS.values(), key=lambda method: method is not SGD)  # SGD first
    for form, settings in method.forms.items()
}
BASELINE_ROW = method_name(SGD)  # the row with which the others are compared
ROWS |= {f"{form}-sizes": ROWS[form]._replace(sizes={}) for form in (BASELINE_ROW, FILTERS.name, WEIGHTS.name)}
ROWS |= {f"{form}-taught": ROWS[form]._replace(sizes=TAUGHT) for form in (BASELINE_ROW, FILTERS.name)}  # as in recipes
DEFAULT_ROWS = (BASELINE_ROW, "filters", "weights", "rank-0.1", "rank-0.3", "nuc-svd")


def choose_rows(text: str | None) -> list[str]:
    """Return keys of ROWS, in their order, always with SGD, to which the others are compared.

    Args:
        text: names separated by commas; "all"; or None for the default ones.

    >>> choose_rows("nuc, filters")
    ['sgd', 'nuc', 'filters']
    """
    if text is None:
        chosen = list(DEFAULT_ROWS)
    elif text == "all":
        chosen = list(ROWS)
    else:
        chosen = [name.strip() for name in text.split(",")]
    for name in chosen:
        if name not in ROWS:
            raise ConfigError(f"--rows {name!r}{did_you_mean(name, ROWS)}; there are all, {', '.join(ROWS)}")
    return [name for name in ROWS if name in chosen or name == BASELINE_ROW]


def row_config(stem: str, row: MethodRow, data: Path | None, changes: Sequence[str]) -> RunConfig:
    """Return the configuration of the training that a row measures, on random images where no data are given.

    Args:
        stem: the name of a recipe without its variant, such as "digits-resnet".
        row: the form of a method.
        data: the folder with the data set; None: the environment variable SPARSEFW_DATA, or else random images.
        changes: of the recipe, such as "data.batch_size=64".
    """
    config = load_recipe(baseline_of(stem), [*row.changes, *changes])
    info = config.data.info()
    if info.make is not None or data is not None or os.environ.get(DATA_VARIABLE):
        return config
    if info.task != "classification" or info.classes is None:
        raise ConfigError(f"bench {stem!r}: images of {info.name} have labels that cannot be made up; give --data")
    batch = config.data.batch_size
    shape = image_shape(config)
    batches = max(MIN_NOISE_BATCHES, NOISE_BYTES // (batch * math.prod(shape)))
    noise = Noise(shape=shape, classes=info.classes, images=batch * batches)
    # Long enough for the network to be compiled, as it is in a training on the real data set.
    epochs = max(config.train.epochs, math.ceil(COMPILED_STEPS / batches))
    noise_data = config.data.model_copy(update={"name": "noise", "noise": noise, "validation": 0.0})
    return config.model_copy(update={"data": noise_data, "train": config.train.model_copy(update={"epochs": epochs})})


def image_shape(config: RunConfig) -> tuple[int, int, int]:
    """Return channels, height and width of the network's input."""
    channels, height, width = config.data.info().shape
    return (channels, *(config.data.size or (height, width)))
