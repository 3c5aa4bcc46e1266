"""What a sweep is to do: a grid, how many seeds, and how configurations are drawn. The same plan is the same sweep."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from pydantic import Field, model_validator

from sparsefw.config_base import ConfigError, Section, flat
from sparsefw.sweep.grids import Grid, Range
from sparsefw.train.config import RunConfig

RESERVED = (
    "workers",
    "sweep.json",
    "ledger.db",
    "results.json",
    "curves",
    "config.yaml",
    "metrics.jsonl",
    "result.json",
    "row",
)
OPTIONS = ("seeds", "sampler", "trials", "prune", "grace")
FIRST = 0  # the seed on which configurations are compared
FORM = "masked"  # the paper's protocol: what is removed is set to zero, and BatchNorm statistics are recomputed


class SweepPlan(Section):
    """
    changes   settings of all configurations, such as "train.epochs=5"
    seeds     so many of the chosen configuration, the one it was chosen on among them
    sampler   "grid": every configuration; "random" or "tpe": `trials` of them per row
    prune     stop a training whose network, compressed, is worse than the median of the others at the same time
    grace     seconds after which a worker that was not heard of is taken for dead: the same for all, who count by it, too
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
    def _whole(self) -> Self:
        if (self.sampler == "grid") != (self.trials is None):
            if self.trials is None:
                raise ValueError(f"--sampler {self.sampler}: say how many configurations a row, with --trials N")
            raise ValueError("--trials: a grid tries all of its configurations; add --sampler random or tpe")
        self.grid.check(self.changes)
        self._names()
        for row in self.rows:
            if self.sampler == "grid" and not self.grid.is_finite(row):
                raise ValueError(
                    f"{row}: ranges have no end of values to try; add --sampler random or tpe, and --trials N"
                )
            if not self.example(row).data.validation:
                raise ValueError(
                    "data.validation=0: configurations are chosen by validation images, so there must be some"
                )
        return self

    def _names(self) -> None:
        """Rows are folders, too: no two may have the same, nor one that the sweep itself uses."""
        if "/" in self.name or self.name.startswith("."):
            raise ValueError(f"name={self.name!r}: it is the name of a folder, too, so no / and no dot to begin with")
        taken = dict.fromkeys(RESERVED, "the sweep itself")
        for row in self.rows:
            folder = slug(row).casefold()
            if folder in taken or folder.startswith("."):
                whose = taken.get(folder, "hidden files")
                raise ValueError(
                    f"row {row!r} would be kept in the folder {slug(row)!r}, as {whose}: give it another name"
                )
            taken[folder] = f"row {row!r}"

    @property
    def rows(self) -> list[str]:
        return list(self.grid.methods)

    def jobs(self, row: str) -> dict[str, dict[str, Any]]:
        """Every configuration of a row by its number, as the ledger keeps it; none where Optuna's sampler makes them.

        Of lists alone, a random choice is made here, and none of its configurations is another one's double.
        """
        if self.budget(row) is not None:
            return {}
        numbered = list(enumerate(self.grid.choices(row)))
        if self.trials is not None and self.trials < len(numbered):
            numbered = sorted(random.Random(f"{self.name} {row}").sample(numbered, self.trials), key=lambda one: one[0])
        return {f"{number:04d}": {key: _kept(value) for key, value in chosen.items()} for number, chosen in numbered}

    def budget(self, row: str) -> int | None:
        """How many configurations Optuna's sampler makes; None where they can be listed."""
        listed = self.sampler == "grid" or (
            self.grid.is_finite(row) and (self.sampler == "random" or (self.trials or 0) >= len(self.grid.choices(row)))
        )
        return None if listed else self.trials

    def count(self, row: str) -> int:
        return self.budget(row) or len(self.jobs(row))

    def space(self, row: str) -> dict[str, BaseDistribution]:
        return {key: _distribution(value) for key, value in self.grid.varied(row).items()}

    def optuna_sampler(self) -> optuna.samplers.BaseSampler:
        """Jobs of a grid are posted, so that nothing is drawn for them."""
        return optuna.samplers.TPESampler() if self.sampler == "tpe" else optuna.samplers.RandomSampler()

    def chosen(self, row: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """What a job's parameters mean."""
        varied = self.grid.varied(row)
        return {key: _meant(params[key], varied[key]) for key in varied}

    def config(self, row: str, job: str, params: Mapping[str, Any], seed: int = FIRST) -> RunConfig:
        name = f"{self.name}-{slug(row)}-{job}"
        return self.grid.config(row, self.chosen(row, params), self.changes, name, seed=seed)

    def example(self, row: str) -> RunConfig:
        """One of the row's configurations."""
        varied = self.grid.varied(row).items()
        ends = {key: value.low if isinstance(value, Range) else value[0] for key, value in varied}
        return self.grid.config(row, ends, self.changes)

    def same_as(self, other: SweepPlan) -> None:
        """ConfigError naming a setting in which the two differ."""
        mine, theirs = ({"--rows": plan.rows, **flat(plan.model_dump(mode="json"))} for plan in (self, other))
        for key in {**mine, **theirs}:
            if mine.get(key) != theirs.get(key):
                name = {"changes": "--set"}.get(key, f"--{key}" if key in OPTIONS else key)
                raise ConfigError(
                    f"{name} {mine.get(key)!r}: the sweep {self.name} was begun with {theirs.get(key)!r}; "
                    "for another one choose another --out, and on a server another --name, too"
                )


def slug(text: str) -> str:
    """For names of files."""
    return re.sub(r"[^A-Za-z0-9.+=-]+", "-", text).strip("-") or "row"


def in_words(settings: Mapping[str, Any], edges: Sequence[str] = ()) -> str:
    """ "k=0.1 w=20*" for {"method.k": 0.1, "method.w": 20} with w at an edge."""

    def shown(value: Any) -> str:
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    return " ".join(f"{k.rpartition('.')[2]}={shown(v)}{'*' if k in edges else ''}" for k, v in settings.items())


def _kept(value: Any) -> Any:
    """Choices of Optuna are numbers, words and nothing else."""
    return value if isinstance(value, int | float | str) else json.dumps(value)


def _meant(value: Any, varied: list[Any] | Range) -> Any:
    if isinstance(varied, Range):
        return value
    return next(choice for choice in varied if _kept(choice) == value)


def _distribution(varied: list[Any] | Range) -> BaseDistribution:
    if not isinstance(varied, Range):
        return CategoricalDistribution([_kept(choice) for choice in varied])
    if varied.whole:
        return IntDistribution(int(varied.low), int(varied.high), log=varied.log)
    return FloatDistribution(varied.low, varied.high, log=varied.log)
