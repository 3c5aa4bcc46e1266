"""Grids: which settings of which methods a sweep compares, as YAML.

    recipe    the stem of a recipe, whose sgd variant is trained with the settings below
    kind      the kind that is removed after training
    at        the ratios that are removed
    train     settings of all rows
    methods   the rows of the table: each has a method, further settings of its training, and sizes if it is trained over sizes

If a setting is a list, the grid has a configuration for each of its values, combined with all values of the other lists. (The
values of a setting that is itself a list are a list of lists.) A range, such as "0.05..0.5" or "1e-5..1e-2 log", is for
samplers, which draw values from it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from sparsefw.config_base import ConfigError, KindName, Section, flatten, nest, parse
from sparsefw.limits import GRID_CONFIGURATIONS
from sparsefw.text import did_you_mean
from sparsefw.train.config import RunConfig
from sparsefw.train.recipes import baseline_of, load_recipe, merged, read_yaml_file, stems_with_baseline

SHIPPED_GRIDS = resources.files("sparsefw") / "grids"
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?"


class Range(NamedTuple):
    """All numbers from low to high, or only the integers if both ends are; log: on a logarithmic scale."""

    low: float
    high: float
    log: bool

    @property
    def integers(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    @classmethod
    def of(cls, value: Any) -> Range | None:
        """Parse a range such as "1e-5..1e-2 log"; None if the value is something else.

        >>> Range.of("0.05..0.5")
        Range(low=0.05, high=0.5, log=False)
        """
        match = re.fullmatch(rf"({NUMBER})\.\.({NUMBER})( log)?", value) if isinstance(value, str) else None
        if match is None:
            return None
        low, high = (int(end) if re.fullmatch(r"[-+]?\d+", end) else float(end) for end in match.groups()[:2])
        log = match[3] is not None
        if not low < high or (log and low <= 0):
            positive = ", and above 0 for log" if log else ""
            raise ConfigError(f"range {value!r}: the low end must be below the high end{positive}")
        return cls(low, high, log)


class Row(Section):
    """A row of the table: a method, settings of its training, and the sizes that it is trained over, if any."""

    method: dict[str, Any]
    train: dict[str, Any] = Field(default_factory=dict)
    sizes: dict[str, Any] | None = None


class Grid(Section):
    """A table of methods, each with the settings to try."""

    name: str
    about: str = ""
    recipe: str
    kind: KindName
    at: tuple[float, ...]
    train: dict[str, Any] = Field(default_factory=dict)
    methods: dict[str, Row] = Field(min_length=1)

    def settings(self, row: str) -> dict[str, Any]:
        """Return the settings of a row by dotted name, such as "method.strength"; lists and ranges as they are written."""
        entry = self.methods[row]
        return flatten({"train": {**self.train, **entry.train}, "method": entry.method, "sizes": entry.sizes or {}})

    def varied(self, row: str) -> dict[str, list[Any] | Range]:
        """Return the settings in which the configurations of a row differ, each with its values or its range."""
        varied: dict[str, list[Any] | Range] = {}
        for key, value in self.settings(row).items():
            if isinstance(value, list):
                varied[key] = value
            elif (value_range := Range.of(value)) is not None:
                varied[key] = value_range
        return varied

    def config(
        self,
        row: str,
        varied_settings: Mapping[str, Any],
        changes: Sequence[str] = (),
        name: str | None = None,
        **fields: Any,
    ) -> RunConfig:
        """Return one configuration of a row.

        Args:
            row: the name of the row
            varied_settings: a value for every setting that the row varies
            changes: such as "train.epochs=5"; a setting that the row varies is refused
            name: of the configuration
            fields: further fields of the configuration, such as seed=1
        """
        varied = self.varied(row)
        for change in changes:
            key = change.partition("=")[0]
            if key in varied:
                tried = self.settings(row)[key]
                raise ConfigError(f"{key}: the grid {self.name} tries {tried} for {row}; change the grid instead")
        tables: dict[str, Any] = {"name": name or f"{self.name}-{row}", "curve": {"kind": self.kind, "at": self.at}}
        if self.methods[row].sizes is not None:
            tables["sizes"] = {}  # also where nothing about them is set
        for key, value in {**self.settings(row), **varied_settings}.items():
            tables = merged(tables, nest(key, value))
        return load_recipe(baseline_of(self.recipe), changes, **{**tables, **fields})

    def is_finite(self, row: str) -> bool:
        """Return whether all configurations of a row can be listed."""
        return all(isinstance(value, list) for value in self.varied(row).values())

    def combinations(self, row: str) -> list[dict[str, Any]]:
        """Return the varied settings of every configuration of a row; refuse a row with a range."""
        varied = self.varied(row)
        for key, value in varied.items():
            if isinstance(value, Range):
                written = self.settings(row)[key]
                raise ConfigError(f"{key}={written!r}: a range cannot be enumerated; use a sampler")
        return _combinations(varied)

    def check(self, changes: Sequence[str] = ()) -> None:
        """Refuse a grid with a configuration that cannot be trained; both ends of a range are checked."""
        key = f"{self.model_dump_json()} {changes!r}"
        if key in _CHECKED:
            return
        stems = stems_with_baseline()
        if self.recipe not in stems:
            hint = did_you_mean(self.recipe, stems)
            raise ConfigError(
                f"grid {self.name}: recipe={self.recipe!r}{hint}; must be a recipe without its variant, such as digits-resnet"
            )
        self.check_rows(changes)
        _CHECKED.add(key)

    def check_rows(self, changes: Sequence[str] = ()) -> None:
        """Refuse a row with a configuration that cannot be trained."""
        for row in self.methods:
            try:
                self._check_row(row, changes)
            except ConfigError as error:
                raise ConfigError(f"grid {self.name}, {row}: {error}") from None

    def _check_row(self, row: str, changes: Sequence[str]) -> None:
        tried: dict[str, list[Any]] = {}
        count = 1
        for key, value in self.varied(row).items():
            values = [value.low, value.high] if isinstance(value, Range) else value
            if not values:
                raise ConfigError(f"{key}: the list is empty; it must have a value")
            if repeated := [item for i, item in enumerate(values) if item in values[:i]]:
                raise ConfigError(f"{key}: {repeated[0]!r} is listed twice; list each value once")
            tried[key] = values
            count *= len(values)
            if count > GRID_CONFIGURATIONS:
                raise ConfigError(f"{key}: it has more than {GRID_CONFIGURATIONS:,} configurations; list fewer values")
        for varied_settings in _combinations(tried):
            self.config(row, varied_settings, changes)


_CHECKED: set[str] = set()  # grids that passed the check: a hundred configurations take a second


def _combinations(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return every choice of one value per key."""
    return [dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())]


def grid_descriptions() -> dict[str, str]:
    """Return every shipped grid, with its description."""
    files = sorted(
        (file for file in SHIPPED_GRIDS.iterdir() if file.name.endswith(".yaml")), key=lambda file: file.name
    )
    return {file.name.removesuffix(".yaml"): read_yaml_file(file, file.name)["about"] for file in files}


def load_grid(name: str) -> Grid:
    """Load a shipped grid by its name, or any grid from a .yaml file, and check it."""
    is_path = Path(name).suffix in (".yaml", ".yml")
    file = Path(name) if is_path else SHIPPED_GRIDS / f"{name}.yaml"
    if not file.is_file():
        raise ConfigError(f"grid {name!r}: {_why_missing(name, is_path)}; see `sparsefw list grids`")
    values = read_yaml_file(file, name)
    grid = parse(Grid, {"name": Path(name).stem if is_path else name, **values}, f"grid {name}")
    try:
        grid.check()
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}" if is_path else str(error)) from None
    return grid


def _why_missing(name: str, is_path: bool) -> str:
    if is_path:
        return "it is a folder" if Path(name).is_dir() else "there is no such file"
    return f"there is no such grid{did_you_mean(name, grid_descriptions())}"
