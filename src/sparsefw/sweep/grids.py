"""Grids: which settings of which methods are compared, as YAML.

    recipe    the stem of a recipe, trained as its sgd variant is, but for what follows
    kind, at  what is removed after training, and how much
    train     settings for all methods
    methods   a row of the table each: its method, and further settings

Where a setting is a list, every one of its values is tried, with every one of the others. (A setting that is a list itself is
given as a list of lists.) A range, such as "0.05..0.5" or "1e-5..1e-2 log", is for samplers that draw from it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from sparsefw.config_base import ConfigError, KindName, Section, flat, nested, parse
from sparsefw.text import did_you_mean
from sparsefw.train.config import RunConfig
from sparsefw.train.recipes import load_recipe, merged, read_yaml, recipe_names

SHIPPED = resources.files("sparsefw") / "grids"
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?"


class Point(NamedTuple):
    """One configuration of a method: what it differs in from the others of the grid, and all of it."""

    chosen: dict[str, Any]
    config: RunConfig


class Range(NamedTuple):
    """Numbers from low to high, whole ones where both are; on a logarithmic scale where asked for."""

    low: float
    high: float
    log: bool

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    @classmethod
    def of(cls, value: Any) -> Range | None:
        """None where it is none."""
        found = re.fullmatch(rf"({NUMBER})\.\.({NUMBER})( log)?", value) if isinstance(value, str) else None
        if found is None:
            return None
        ends = [int(end) if re.fullmatch(r"[-+]?\d+", end) else float(end) for end in found.groups()[:2]]
        if not ends[0] < ends[1] or (found[3] and ends[0] <= 0):
            raise ConfigError(f"range {value!r}: must rise{', from above 0' if found[3] else ''}")
        return cls(ends[0], ends[1], bool(found[3]))


class Entry(Section):
    """A row of the table."""

    method: dict[str, Any]
    train: dict[str, Any] = Field(default_factory=dict)


class Grid(Section):
    name: str
    about: str = ""
    recipe: str
    kind: KindName
    at: tuple[float, ...]
    train: dict[str, Any] = Field(default_factory=dict)
    methods: dict[str, Entry] = Field(min_length=1)

    def settings(self, method: str) -> dict[str, Any]:
        """Those of a row, such as "method.strength"; what is a list is varied."""
        entry = self.methods[method]
        return flat({"train": {**self.train, **entry.train}, "method": entry.method})

    def varied(self, method: str) -> dict[str, list[Any] | Range]:
        """What differs between the configurations of a row."""
        found: dict[str, list[Any] | Range] = {}
        for key, value in self.settings(method).items():
            if isinstance(value, list):
                found[key] = value
            elif (drawn := Range.of(value)) is not None:
                found[key] = drawn
        return found

    def config(
        self,
        method: str,
        chosen: Mapping[str, Any],
        changes: Sequence[str] = (),
        name: str | None = None,
        **fields: Any,
    ) -> RunConfig:
        """One configuration of a row, with `changes` such as "train.epochs=5" applied, to none of what is varied."""
        varied = self.varied(method)
        for key in (change.partition("=")[0] for change in changes):
            if key in varied:
                raise ConfigError(
                    f"{key}: the grid {self.name} tries {self.settings(method)[key]} for {method}; change the grid instead"
                )
        tables: dict[str, Any] = {"name": name or f"{self.name}-{method}", "curve": {"kind": self.kind, "at": self.at}}
        for key, value in {**self.settings(method), **chosen}.items():
            tables = merged(tables, nested(key, value))
        return load_recipe(f"{self.recipe}-sgd", changes, **{**tables, **fields})

    def is_finite(self, method: str) -> bool:
        """Whether all configurations of a row can be listed."""
        return all(isinstance(value, list) for value in self.varied(method).values())

    def choices(self, method: str) -> list[dict[str, Any]]:
        """What is varied in a row, in all of its values; ConfigError where there is no end of them."""
        varied = self.varied(method)
        for key, value in varied.items():
            if isinstance(value, Range):
                raise ConfigError(
                    f"{key}={self.settings(method)[key]!r}: a range has no end of values to try; sample from it instead"
                )
        return [dict(zip(varied, values, strict=True)) for values in itertools.product(*varied.values())]

    def points(self, method: str, changes: Sequence[str] = (), **fields: Any) -> list[Point]:
        """All configurations of a row."""
        return [
            Point(chosen, self.config(method, chosen, changes, f"{self.name}-{method}-{number}", **fields))
            for number, chosen in enumerate(self.choices(method))
        ]

    def check(self, changes: Sequence[str] = ()) -> None:
        """ConfigError, naming the row, where a configuration cannot be trained. Of ranges, both ends are looked at."""
        asked = f"{self.model_dump_json()} {changes!r}"
        if asked in _CHECKED:
            return
        stems = [name.removesuffix("-sgd") for name in recipe_names() if name.endswith("-sgd")]
        if self.recipe not in stems:
            hint = did_you_mean(self.recipe, stems)
            raise ConfigError(
                f"grid {self.name}: recipe={self.recipe!r}{hint}; as digits-resnet is of digits-resnet-sgd"
            )
        for method in self.methods:
            try:
                varied = {k: [v.low, v.high] if isinstance(v, Range) else v for k, v in self.varied(method).items()}
                for key, listed in varied.items():
                    if not listed:
                        raise ConfigError(f"{key}: an empty list leaves nothing to try")
                    if twice := [value for i, value in enumerate(listed) if value in listed[:i]]:
                        raise ConfigError(f"{key}: {twice[0]!r} is in its list twice, and would be trained twice")
                for values in itertools.product(*varied.values()):
                    self.config(method, dict(zip(varied, values, strict=True)), changes)
            except ConfigError as error:
                raise ConfigError(f"grid {self.name}, {method}: {error}") from None
        _CHECKED.add(asked)


_CHECKED: set[str] = set()  # grids that were found right before: a hundred configurations take a second


def grid_names() -> dict[str, str]:
    """Every shipped grid and what it is about."""
    files = sorted((file for file in SHIPPED.iterdir() if file.name.endswith(".yaml")), key=lambda file: file.name)
    return {file.name.removesuffix(".yaml"): read_yaml(file.read_text(), file.name)["about"] for file in files}


def load_grid(name: str) -> Grid:
    """A shipped grid, or that of a YAML file."""
    own = Path(name).suffix in (".yaml", ".yml")
    file = Path(name) if own else SHIPPED / f"{name}.yaml"
    if not file.is_file():
        hint = "" if own else did_you_mean(name, [f.name.removesuffix(".yaml") for f in SHIPPED.iterdir()])
        what = "it is a folder" if own and file.is_dir() else f"there is no such {'file' if own else 'grid'}{hint}"
        raise ConfigError(f"grid {name!r}: {what}; see `sparsefw list grids`")
    values = read_yaml(file.read_text(), name)
    grid = parse(Grid, {"name": Path(name).stem if own else name, **values}, f"grid {name}")
    grid.check()
    return grid
