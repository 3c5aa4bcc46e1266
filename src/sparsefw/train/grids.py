"""Grids: which settings of which methods are compared, as YAML.

    recipe    the stem of a recipe, trained as its sgd variant is, but for what follows
    kind, at  what is removed after training, and how much
    train     settings for all methods
    methods   a row of the table each: its method, and further settings

Where a setting is a list, every one of its values is tried, with every one of the others. (A setting that is a list itself is
given as a list of lists.)
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field

from sparsefw.train.config import RunConfig
from sparsefw.train.recipes import load_recipe, read_yaml
from sparsefw.typed import ConfigError, Section, flat, parse
from sparsefw.words import did_you_mean

SHIPPED = resources.files("sparsefw") / "grids"


class Point(NamedTuple):
    """One configuration of a method: what it differs in from the others of the grid, and all of it."""

    chosen: dict[str, Any]
    config: RunConfig


class Entry(Section):
    """A row of the table."""

    method: dict[str, Any]
    train: dict[str, Any] = Field(default_factory=dict)


class Grid(Section):
    name: str
    about: str = ""
    recipe: str
    kind: Literal["filters", "rank", "weights"]
    at: tuple[float, ...]
    train: dict[str, Any] = Field(default_factory=dict)
    methods: dict[str, Entry] = Field(min_length=1)

    def points(self, method: str, changes: Sequence[str] = (), **fields: Any) -> list[Point]:
        """All configurations of a row, with `changes` such as "train.epochs=5" applied, to none of what is varied."""
        entry = self.methods[method]
        settings = flat({"train": {**self.train, **entry.train}, "method": entry.method})
        varied = {key: value for key, value in settings.items() if isinstance(value, list)}
        for key in (change.partition("=")[0] for change in changes):
            if key in varied:
                raise ConfigError(
                    f"{key}: the grid {self.name} tries {varied[key]} for {method}; change the grid instead"
                )
        found: list[Point] = []
        for values in itertools.product(*varied.values()):
            chosen = dict(zip(varied, values, strict=True))
            tables: dict[str, Any] = {"train": {}, "method": {}}
            for key, value in {**settings, **chosen}.items():
                *path, name = key.split(".")
                table = tables
                for part in path:
                    table = table.setdefault(part, {})
                table[name] = value
            curve = {"kind": self.kind, "at": self.at}
            named = f"{self.name}-{method}-{len(found)}"
            config = load_recipe(f"{self.recipe}-sgd", changes, **{"name": named, "curve": curve, **tables, **fields})
            found.append(Point(chosen, config))
        return found


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
        raise ConfigError(
            f"grid {name!r}: there is no such {'file' if own else 'grid'}{hint}; see `sparsefw list grids`"
        )
    values = read_yaml(file.read_text(), name)
    grid = parse(Grid, {"name": Path(name).stem if own else name, **values}, f"grid {name}")
    for method in grid.methods:
        try:
            points = grid.points(method)
        except ConfigError as error:
            raise ConfigError(f"grid {name}, {method}: {error}") from None
        if not points:
            raise ConfigError(f"grid {name}, {method}: an empty list leaves nothing to try")
    return grid
