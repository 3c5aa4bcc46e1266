"""The plan of a sweep: a grid, the number of seeds, and how configurations are drawn. Equal plans are the same sweep."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from pydantic import Field, model_validator

from sparsefw.config_base import ConfigError, Section, flatten
from sparsefw.runfolder.files import MARKS
from sparsefw.sweep.files import IDENTITY_FILE, LEDGER_FILE, RESULTS_FILE, WORKERS_FOLDER
from sparsefw.sweep.grids import Grid, Range
from sparsefw.train.config import RunConfig

# Names that the folder of a sweep uses itself, and names that would make it look like a run folder.
RESERVED_NAMES = (WORKERS_FOLDER, IDENTITY_FILE, LEDGER_FILE, RESULTS_FILE, *MARKS, "row")
COMMAND_LINE_OPTIONS = ("seeds", "sampler", "trials", "prune", "grace")
SELECTION_SEED = 0  # the seed on which configurations are compared; the further seeds follow it
CURVE_FORM = "masked"  # as in the paper: removed units are set to zero, and BatchNorm statistics are recomputed


class SweepPlan(Section):
    """The plan of a sweep.

    changes   settings of all configurations, such as "train.epochs=5"
    seeds     how many seeds of the chosen configuration are reported, the one it was chosen on included
    sampler   "grid": every configuration; "random" or "tpe": `trials` of them per row
    prune     stop a training whose network, compressed, is worse than the median of the others at the same epoch
    grace     seconds without a heartbeat after which a worker counts as dead; the same for all workers
    """

    name: str = Field(min_length=1)
    grid: Grid
    changes: tuple[str, ...] = ()
    seeds: int = Field(default=3, ge=1)
    sampler: Literal["grid", "random", "tpe"] = "grid"
    trials: int | None = Field(default=None, ge=1)
    prune: bool = False
    grace: float = Field(default=60.0, gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.sampler != "grid" and self.trials is None:
            raise ValueError(f"--sampler {self.sampler}: add --trials N, the number of configurations per row")
        if self.sampler == "grid" and self.trials is not None:
            raise ValueError("--trials: a grid tries all of its configurations; add --sampler random or tpe")
        self.grid.check(self.changes)
        self._check_names()
        for row in self.rows:
            if self.sampler == "grid" and not self.grid.is_finite(row):
                raise ValueError(f"{row}: a range cannot be enumerated; add --sampler random or tpe, and --trials N")
            if not self.example(row).data.validation:
                raise ValueError(
                    "data.validation=0: must be above 0, because configurations are chosen on validation images"
                )
        return self

    def _check_names(self) -> None:
        """Refuse names that cannot be folders, and rows that would share a folder."""
        if "/" in self.name or self.name.startswith("."):
            raise ValueError(f"name={self.name!r}: must not contain / or begin with a dot, because it names a folder")
        owners = dict.fromkeys(RESERVED_NAMES, "the sweep itself")
        for row in self.rows:
            folder = folder_name(row)
            key = folder.casefold()
            if key in owners or key.startswith("."):
                owner = owners.get(key, "hidden files")
                raise ValueError(f"row {row!r}: its folder {folder!r} belongs to {owner}; give the row another name")
            owners[key] = f"row {row!r}"

    @property
    def rows(self) -> list[str]:
        return list(self.grid.methods)

    def jobs(self, row: str) -> dict[str, dict[str, Any]]:
        """Return the parameters of every configuration of a row by its number; none if Optuna's sampler draws them.

        If a row consists of lists alone, random configurations are drawn here, all of them different.
        """
        if self.budget(row) is not None:
            return {}
        numbered = list(enumerate(self.grid.combinations(row)))
        if self.trials is not None and self.trials < len(numbered):
            drawn = random.Random(f"{self.name} {row}").sample(numbered, self.trials)
            numbered = sorted(drawn, key=lambda item: item[0])
        return {
            f"{number:04d}": {key: _to_choice(value) for key, value in settings.items()}
            for number, settings in numbered
        }

    def budget(self, row: str) -> int | None:
        """Return how many configurations Optuna's sampler draws for a row; None if they are listed by `jobs`."""
        if self.sampler == "grid":
            return None
        if self.grid.is_finite(row):
            tries_all = (self.trials or 0) >= len(self.grid.combinations(row))
            if self.sampler == "random" or tries_all:
                return None
        return self.trials

    def count(self, row: str) -> int:
        """Return the number of configurations of a row."""
        return self.budget(row) or len(self.jobs(row))

    def space(self, row: str) -> dict[str, BaseDistribution]:
        """Return the distribution of every varied setting of a row."""
        return {key: _distribution(value) for key, value in self.grid.varied(row).items()}

    def optuna_sampler(self) -> optuna.samplers.BaseSampler:
        """Return the sampler of the studies; it draws nothing for a grid, whose jobs are posted."""
        return optuna.samplers.TPESampler() if self.sampler == "tpe" else optuna.samplers.RandomSampler()

    def varied_settings(self, row: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the varied settings of the configuration with the parameters `params`."""
        return {key: _from_choice(params[key], value) for key, value in self.grid.varied(row).items()}

    def config(self, row: str, job: str, params: Mapping[str, Any], seed: int = SELECTION_SEED) -> RunConfig:
        name = f"{self.name}-{folder_name(row)}-{job}"
        return self.grid.config(row, self.varied_settings(row, params), self.changes, name, seed=seed)

    def example(self, row: str) -> RunConfig:
        """Return one configuration of a row."""
        varied = self.grid.varied(row).items()
        first = {key: value.low if isinstance(value, Range) else value[0] for key, value in varied}
        return self.grid.config(row, first, self.changes)

    def import_code(self, trust: bool) -> None:
        """Import the methods of the user's own that the plan names, and check their settings; then it can be trained.

        trust: whether they and the network may be imported; ValueError if there is such code, and it may not.
        """
        examples = [self.example(row) for row in self.rows]
        if [config.with_code(trust) for config in examples] != examples:
            self.grid.check_rows(self.changes)

    def check_same(self, begun: SweepPlan) -> None:
        """Raise ConfigError if this plan differs from the one with which the sweep was begun."""
        mine = self._flat()
        theirs = begun._flat()
        for key in {**mine, **theirs}:
            if mine.get(key) != theirs.get(key):
                name = {"changes": "--set"}.get(key, f"--{key}" if key in COMMAND_LINE_OPTIONS else key)
                raise ConfigError(
                    f"{name} {mine.get(key)!r}: the sweep {self.name} was begun with {theirs.get(key)!r}; "
                    "for another sweep choose another --out, and on a server also another --name"
                )

    def _flat(self) -> dict[str, Any]:
        return {"--rows": self.rows, **flatten(self.model_dump(mode="json"))}


def folder_name(row: str) -> str:
    """Return the name of a row's folder.

    >>> folder_name("SparseFW k-sparse, 50 %")
    'SparseFW-k-sparse-50'
    """
    return re.sub(r"[^A-Za-z0-9.+=-]+", "-", row).strip("-") or "row"


def settings_text(settings: Mapping[str, Any], at_edge: Sequence[str] = ()) -> str:
    """Return the settings without their sections; those at the edge of the grid are marked by *.

    >>> settings_text({"method.k": 0.1, "method.w": 20}, at_edge=["method.w"])
    'k=0.1 w=20*'
    """
    texts = []
    for key, value in settings.items():
        shown = f"{value:.4g}" if isinstance(value, float) else str(value)
        texts.append(f"{key.rpartition('.')[2]}={shown}{'*' if key in at_edge else ''}")
    return " ".join(texts)


def _to_choice(value: Any) -> Any:
    """Return a value as Optuna can store it: numbers and strings as they are, anything else as JSON."""
    return value if isinstance(value, int | float | str) else json.dumps(value)


def _from_choice(stored: Any, varied: list[Any] | Range) -> Any:
    """Return the value that `_to_choice` stored."""
    if isinstance(varied, Range):
        return stored
    return next(value for value in varied if _to_choice(value) == stored)


def _distribution(varied: list[Any] | Range) -> BaseDistribution:
    if not isinstance(varied, Range):
        return CategoricalDistribution([_to_choice(value) for value in varied])
    if varied.integers:
        return IntDistribution(int(varied.low), int(varied.high), log=varied.log)
    return FloatDistribution(varied.low, varied.high, log=varied.log)
