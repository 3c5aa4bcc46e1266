"""The lists of `sparsefw list`: models, data sets, methods and whatever else is registered."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from sparsefw.cli.output import Outcome
from sparsefw.kind_words import KIND_WORDS, PATTERN
from sparsefw.text import did_you_mean

if TYPE_CHECKING:
    from sparsefw.methods import Method


@dataclass(frozen=True)
class Catalog:
    """One of the lists.

    holds      what is in it
    list_all   shows all entries
    describe   shows one entry with all of its settings, for lists whose entries have some
    """

    holds: str
    list_all: Callable[[], Outcome]
    describe: Callable[[str, bool], Outcome] | None = None


def catalog(what: str | None = None, name: str | None = None, trust: bool = False) -> Outcome:
    """List the lists, list all entries of one, or describe one entry.

    trust: whether the module of a method of the user's own may be imported, which runs it.
    """
    if what is None:
        return _list_names({key: entry.holds for key, entry in CATALOGS.items()})
    if what not in CATALOGS:
        raise ValueError(f"list {what!r}{did_you_mean(what, CATALOGS)}; there are {', '.join(CATALOGS)}")
    if name is None:
        return CATALOGS[what].list_all()
    describe = CATALOGS[what].describe
    if describe is None:
        described = " and ".join(key for key, entry in CATALOGS.items() if entry.describe is not None)
        raise ValueError(f"list {what} {name!r}: only {described} are described one by one; leave {name!r} out")
    return describe(name, trust)


def _list_names(descriptions: Mapping[str, str]) -> Outcome:
    width = max(map(len, descriptions), default=0)
    lines = [f"{name:{width}}  {description}" for name, description in descriptions.items()]
    return Outcome(dict(descriptions), "\n".join(lines))


def _list_models() -> Outcome:
    from sparsefw.models import MODELS

    others = {
        "timm:NAME": "any network of timm, with fresh weights",
        "torchvision:NAME": "any network of torchvision, with fresh weights",
        "package.module:Attribute": "your own network, with --trust",
    }
    return _list_names({name: info.description for name, info in MODELS.items()} | others)


def _list_datasets() -> Outcome:
    from sparsefw.data import DATASETS

    return _list_names({name: f"{info.description}; files: {info.files}" for name, info in DATASETS.items()})


def _list_methods() -> Outcome:
    """List all methods by the kind that they prepare for removal, with costs, formulas and papers."""
    from sparsefw.kinds import KINDS
    from sparsefw.methods import METHODS
    from sparsefw.methods.costs import measured_costs

    order = [None, *KINDS.values()]
    methods = sorted(METHODS.items(), key=lambda item: order.index(item[1].removes))
    records = {name: _method_record(method) for name, method in methods}
    rows = [("name", "removes", "cost", "")]
    for name, record in records.items():
        description = f"{record['title']}: {record['formula']} [{record['paper']}]"
        rows.append((name, record["removes"], _cost_range(record["costs"]), description))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = []
    for *cells, description in rows:
        padded = [f"{cell:{width}}" for cell, width in zip(cells, widths, strict=True)]
        lines.append("  ".join([*padded, description]).rstrip())
    costs = measured_costs()
    machine = costs["hardware"].get("gpu") or costs["hardware"]["cpu"]
    lines += [
        "cost: time of a step as a multiple of SGD's, from the cheapest to the most expensive form of the method; "
        f"{costs['recipe']} on one {machine}, {costs['date']}",
        "`sparsefw bench methods` measures the costs on this machine; `sparsefw list methods NAME` shows all settings",
    ]
    return Outcome(records, "\n".join(lines))


def _method_record(method: type[Method]) -> dict[str, Any]:
    from sparsefw.methods.costs import step_costs

    return {
        "title": method.title,
        "removes": "any" if method.removes is None else method.removes.name,
        "costs": step_costs(method),
        "passes": method.passes,
        "formula": _first_line(method),
        "paper": method.paper,
        "settings": {
            field: {"type": _type_name(info.annotation), "default": info.default}
            for field, info in method.model_fields.items()
            if field != "name"
        },
    }


def _cost_range(costs: Mapping[str, float]) -> str:
    """Return such as "1.2x" or "2.9-73.1x"; nothing if no cost is known.

    >>> _cost_range({"nuc": 2.9, "nuc-svd": 73.1})
    '2.9-73.1x'
    """
    if not costs:
        return ""
    lowest = f"{min(costs.values()):.1f}"
    highest = f"{max(costs.values()):.1f}"
    return f"{lowest}x" if lowest == highest else f"{lowest}-{highest}x"


def _describe_method(name: str, trust: bool) -> Outcome:
    from sparsefw.methods.base import find_method

    method = find_method(name, trust)
    record = _method_record(method)
    settings = record["settings"]
    lines = [f"{method.title} [{method.paper}]", "", inspect.getdoc(method) or ""]
    if settings:
        width = max(map(len, settings))
        lines += ["", "settings, each changed by --set method.NAME=VALUE"]
        lines += [
            f"  {field:{width}} = {_default_text(setting['default'])}  ({setting['type']})"
            for field, setting in settings.items()
        ]
    costs = [f"{form} {cost:.2f}" for form, cost in record["costs"].items()]
    lines += ["", f"time of a step as a multiple of SGD's: {', '.join(costs) or 'not measured'}"]
    lines += [f"tried in the grid {grid}: {values}" for grid, values in _values_in_grids(name).items()]
    lines.append(f"try: {method.example.format(name=name)}")
    return Outcome(record, "\n".join(lines))


def _values_in_grids(method: str) -> dict[str, str]:
    """Return for every grid with the method the values of its settings that the grid tries."""
    from sparsefw.sweep.grids import grid_descriptions, load_grid

    values: dict[str, str] = {}
    for name in grid_descriptions():
        for row in load_grid(name).methods.values():
            settings = [f"{key}={value}" for key, value in row.method.items() if key not in ("name", "kind")]
            if (
                row.method["name"] == method and settings and name not in values
            ):  # the first row of a method is the usual one
                values[name] = " ".join(settings)
    return values


def _list_grids() -> Outcome:
    from sparsefw.sweep.grids import grid_descriptions

    return _list_names(grid_descriptions())


def _describe_grid(name: str) -> Outcome:
    from sparsefw.sweep.grids import load_grid

    grid = load_grid(name)
    ratios = ", ".join(f"{ratio:g}" for ratio in grid.at)
    lines = [f"{grid.about or grid.name}; recipe {grid.recipe}, {grid.kind} removed at {ratios}"]
    width = max(map(len, grid.methods))
    for row in grid.methods:
        settings = " ".join(f"{key}={value}" for key, value in grid.settings(row).items())
        count = f"{len(grid.combinations(row)):4} configurations" if grid.is_finite(row) else "to be drawn from"
        lines.append(f"{row:{width}}  {count:>19}: {settings}")
    return Outcome(grid.model_dump(), "\n".join(lines))


def _list_kinds() -> Outcome:
    pattern = "all but N of every M weights along the input channels, set to 0; such as 2:4"
    return _list_names({**KIND_WORDS, PATTERN: pattern})


def _list_regions() -> Outcome:
    from sparsefw.geometry import REGIONS

    return _list_names({name: _first_line(make) for name, make in REGIONS.items()})


def _list_recipes() -> Outcome:
    from sparsefw.train import recipe_descriptions

    return _list_names(recipe_descriptions())


def _list_experiments() -> Outcome:
    from sparsefw.reproduce import EXPERIMENTS

    return _list_names({name: experiment.shows for name, experiment in EXPERIMENTS.items()})


def _list_rows() -> Outcome:
    from sparsefw.bench import ROWS

    return _list_names({name: row.label for name, row in ROWS.items()})


def _first_line(documented: object) -> str:
    return (documented.__doc__ or "").strip().splitlines()[0]


def _type_name(annotation: Any) -> str:
    """Return a type as one writes it, such as "int | float | None"; of a Literal, its values."""
    if get_origin(annotation) is Literal:
        return ", ".join(map(str, get_args(annotation)))
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")


def _default_text(default: Any) -> str:
    return json.dumps(list(default) if isinstance(default, tuple) else default).strip('"')


CATALOGS = {
    "models": Catalog("networks that recipes can train", _list_models),
    "datasets": Catalog("data sets, and the files that they are read from", _list_datasets),
    "methods": Catalog("ways to train, the cost of their steps, and their papers", _list_methods, _describe_method),
    "kinds": Catalog("units that can be removed", _list_kinds),
    "regions": Catalog("sets that weights can be constrained to", _list_regions),
    "recipes": Catalog("trainings, for `sparsefw train`", _list_recipes),
    "grids": Catalog(
        "settings to compare, for `sparsefw sweep`", _list_grids, lambda name, trust: _describe_grid(name)
    ),
    "experiments": Catalog("tables and figures of the paper, for `sparsefw reproduce`", _list_experiments),
    "rows": Catalog("what `sparsefw bench train` measures", _list_rows),
}
