"""Reads what the registries hold, for `sparsefw list`."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from importlib import resources
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from sparsefw.cli.output import Outcome
from sparsefw.kind_words import KIND_WORDS
from sparsefw.text import did_you_mean

if TYPE_CHECKING:
    from sparsefw.methods import Method


def catalog(what: str, name: str | None = None) -> Outcome:
    """List all of a registry, or one of its methods or grids."""
    if what not in CATALOGS:
        raise ValueError(f"list {what!r}{did_you_mean(what, CATALOGS)}; there are {', '.join(CATALOGS)}")
    if name is not None:
        if what not in ("methods", "grids"):
            raise ValueError(f"list {what} {name!r}: only methods and grids are listed one by one; leave {name!r} out")
        return _one_method(name) if what == "methods" else _one_grid(name)
    if what == "methods":
        return _all_methods()
    rows = CATALOGS[what]()
    width = max(map(len, rows), default=0)
    return Outcome(rows, "\n".join(f"{name:{width}}  {about}" for name, about in rows.items()))


def _models() -> dict[str, str]:
    from sparsefw.models import MODELS

    others = {
        "timm:NAME": "any network of timm, with fresh weights",
        "torchvision:NAME": "any network of torchvision, with fresh weights",
        "package.module:function": "your own",
    }
    return {name: info.description for name, info in MODELS.items()} | others


def _datasets() -> dict[str, str]:
    from sparsefw.data import DATASETS

    return {name: f"{info.description}; files: {info.files}" for name, info in DATASETS.items()}


def _methods() -> dict[str, dict[str, Any]]:
    """Tell what each prepares for the removal of, what a step of its forms costs in steps of SGD, its formula and paper."""
    from sparsefw.kinds import KINDS
    from sparsefw.methods import METHODS

    order = [None, *KINDS.values()]
    ordered = sorted(METHODS.items(), key=lambda item: order.index(item[1].removes))
    return {name: _about(name, method) for name, method in ordered}


def _about(name: str, method: type[Method]) -> dict[str, Any]:
    rows = measured_costs()["rows"]
    forms = [form or name for form in method.forms]
    return {
        "title": method.title,
        "removes": "any" if method.removes is None else method.removes.name,
        "costs": {form: 1 / rows[form]["share"] if form in rows else None for form in forms},
        "looks": method.looks,
        "formula": _first_line(method),
        "paper": method.paper,
        "settings": {
            field: {"type": _type_name(info.annotation), "default": info.default}
            for field, info in method.model_fields.items()
            if field != "name"
        },
    }


def _all_methods() -> Outcome:
    found = _methods()
    lines = [["name", "removes", "cost", ""]]
    for name, about in found.items():
        known = sorted(cost for cost in about["costs"].values() if cost is not None)
        ends = list(dict.fromkeys(f"{cost:.1f}" for cost in known[:: max(1, len(known) - 1)]))
        formula = f"{about['title']}: {about['formula']} [{about['paper']}]"
        lines.append([name, about["removes"], "-".join(ends) + "x" * bool(ends), formula])
    widths = [max(len(line[i]) for line in lines) for i in range(3)]
    text = [
        "  ".join([*(f"{cell:{width}}" for cell, width in zip(line, widths, strict=False)), line[3]]).rstrip()
        for line in lines
    ]
    where = measured_costs()
    machine = where["hardware"].get("gpu") or where["hardware"]["cpu"]
    on = f"{where['recipe']} on one {machine}, {where['date']}"
    text.append(
        f"cost: a step in steps of SGD, of its cheapest and its dearest form, {on}\n"
        "`sparsefw bench methods` measures yours; `sparsefw list methods NAME` tells a method's settings"
    )
    return Outcome(found, "\n".join(text))


def _one_method(name: str) -> Outcome:
    from sparsefw.methods.base import find_method

    method = find_method(name)
    record = _about(name, method)
    lines = [f"{method.title} [{method.paper}]", "", inspect.getdoc(method) or ""]
    if record["settings"]:
        width = max(map(len, record["settings"]))
        lines += ["", "settings, each --set method.NAME=VALUE"]
        lines += [
            f"  {f:{width}} = {_value(about['default'])}  ({about['type']})" for f, about in record["settings"].items()
        ]
    costs = [f"{form} {cost:.2f}" for form, cost in record["costs"].items() if cost is not None]
    lines += ["", f"a step in steps of SGD: {', '.join(costs) or 'not measured'}"]
    lines += [f"tried in the grid {grid}: {settings}" for grid, settings in _tried(name).items()]
    return Outcome(record, "\n".join([*lines, f"try: {method.example.format(name=name)}"]))


def _one_grid(name: str) -> Outcome:
    from sparsefw.sweep.grids import load_grid

    grid = load_grid(name)
    lines = [
        f"{grid.about or grid.name}; recipe {grid.recipe}, {grid.kind} removed at {', '.join(f'{r:g}' for r in grid.at)}"
    ]
    width = max(map(len, grid.methods))
    for row in grid.methods:
        words = " ".join(f"{key}={value}" for key, value in grid.settings(row).items())
        tried = f"{len(grid.choices(row)):4} configurations" if grid.is_finite(row) else "to be drawn from"
        lines.append(f"{row:{width}}  {tried:>19}: {words}")
    return Outcome(grid.model_dump(), "\n".join(lines))


def _tried(method: str) -> dict[str, str]:
    """Find the values of a method's settings that each grid tries: what is usual."""
    from sparsefw.sweep.grids import grid_names, load_grid

    found: dict[str, str] = {}
    for grid in grid_names():
        for entry in load_grid(grid).methods.values():
            settings = [f"{key}={value}" for key, value in entry.method.items() if key not in ("name", "kind")]
            if entry.method["name"] == method and settings and grid not in found:  # a method's variants come after it
                found[grid] = " ".join(settings)
    return found


def _type_name(annotation: Any) -> str:
    """Write a type as one would: "int | float | None", or the words to choose from."""
    if get_origin(annotation) is Literal:
        return ", ".join(map(str, get_args(annotation)))
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")


def _value(default: Any) -> str:
    return json.dumps(list(default) if isinstance(default, tuple) else default).strip('"')


def measured_costs() -> dict[str, Any]:
    """Read what `sparsefw bench methods --json` printed, on the machine that it names."""
    return dict(json.loads((resources.files("sparsefw") / "methods" / "costs.json").read_text()))


def _kinds() -> dict[str, str]:
    return {**KIND_WORDS, "N:M": "all but N of every M weights along the input channels, set to 0; such as 2:4"}


def _regions() -> dict[str, str]:
    from sparsefw.geometry import REGIONS

    return {name: _first_line(make) for name, make in REGIONS.items()}


def _recipes() -> dict[str, str]:
    from sparsefw.train import recipe_names

    return recipe_names()


def _grids() -> dict[str, str]:
    from sparsefw.sweep.grids import grid_names

    return grid_names()


def _experiments() -> dict[str, str]:
    from sparsefw.reproduce import EXPERIMENTS

    return {name: experiment.shows for name, experiment in EXPERIMENTS.items()}


def _rows() -> dict[str, str]:
    from sparsefw.bench import ROWS

    return {name: row.label for name, row in ROWS.items()}


def _first_line(thing: object) -> str:
    return (thing.__doc__ or "").strip().splitlines()[0]


CATALOGS: dict[str, Callable[[], dict[str, Any]]] = {
    "models": _models,
    "datasets": _datasets,
    "methods": _methods,
    "kinds": _kinds,
    "regions": _regions,
    "recipes": _recipes,
    "grids": _grids,
    "experiments": _experiments,
    "rows": _rows,
}
