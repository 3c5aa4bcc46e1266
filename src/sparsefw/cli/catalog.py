"""`sparsefw list`: what the registries hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import resources
from typing import Any

from sparsefw.words import did_you_mean


def catalog(what: str) -> dict[str, str]:
    if what not in CATALOGS:
        raise ValueError(f"list {what!r}{did_you_mean(what, CATALOGS)}; there are {', '.join(CATALOGS)}")
    return CATALOGS[what]()


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


def _methods() -> dict[str, str]:
    """What each prepares for the removal of, what a step costs (from the cheapest to the dearest of its forms), and its paper."""
    from sparsefw.methods import METHODS

    rows, order = measured_costs()["rows"], ("any", "filters", "rank", "weights")
    found = {}
    for name, method in sorted(METHODS.items(), key=lambda item: order.index(item[1].removes)):
        costs = sorted(1 / rows[form or name]["share"] for form in method.forms if (form or name) in rows)
        cost = "-".join(dict.fromkeys(f"{cost:.1f}" for cost in costs[:: max(1, len(costs) - 1)])) + "x" * bool(costs)
        found[name] = f"{method.removes:7}  {cost or '-':8}  {method.title}: {_first_line(method)} [{method.paper}]"
    return found


def measured_costs() -> dict[str, Any]:
    """What `sparsefw bench methods --json` printed, on the machine that it names."""
    return dict(json.loads((resources.files("sparsefw") / "methods" / "costs.json").read_text()))


def _regions() -> dict[str, str]:
    from sparsefw import geometry

    made = {name: getattr(geometry, name) for name in geometry.__all__}
    is_region = {n: f for n, f in made.items() if callable(f) and not isinstance(f, type) and n[0].isupper()}
    return {name: _first_line(make) for name, make in is_region.items()}


def _recipes() -> dict[str, str]:
    from sparsefw.train import recipe_names

    return recipe_names()


def _grids() -> dict[str, str]:
    from sparsefw.train.grids import grid_names

    return grid_names()


def _rows() -> dict[str, str]:
    from sparsefw.cli.bench import ROWS

    return {name: row.label for name, row in ROWS.items()}


def _first_line(thing: object) -> str:
    return (thing.__doc__ or "").strip().splitlines()[0]


CATALOGS: dict[str, Callable[[], dict[str, str]]] = {
    "models": _models,
    "datasets": _datasets,
    "methods": _methods,
    "regions": _regions,
    "recipes": _recipes,
    "grids": _grids,
    "rows": _rows,
}
