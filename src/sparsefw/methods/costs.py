"""Measured costs of a step of every method, in steps of SGD.

costs.json is the output of `sparsefw bench methods --json`: a new form of a method has no cost until it is measured again.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from sparsefw.methods.base import Method, method_name


class MissingCostError(ValueError):
    """A form of a registered method has no entry in costs.json."""


def measured_costs() -> dict[str, Any]:
    """Return the content of costs.json: rows by form, and the recipe, hardware, versions and date of the measurement."""
    return dict(json.loads((resources.files("sparsefw") / "methods" / "costs.json").read_text()))


def step_costs(method: type[Method]) -> dict[str, float]:
    """Return the cost of one step of every form of a method, in steps of SGD; empty for a method of a user.

    Raises:
        MissingCostError: a form of a method of this package was not measured.

    >>> from sparsefw.methods import SGD
    >>> step_costs(SGD)
    {'sgd': 1.0}
    """
    if not is_shipped(method):
        return {}
    rows = measured_costs()["rows"]
    name = method_name(method)
    forms = [form or name for form in method.forms]
    missing = [form for form in forms if form not in rows]
    if missing:
        raise MissingCostError(
            f"method {name!r}: no measured cost of {', '.join(missing)};"
            " write the output of `sparsefw bench methods --json` to src/sparsefw/methods/costs.json"
        )
    return {form: 1 / rows[form]["share"] for form in forms}


def is_shipped(method: type[Method]) -> bool:
    """Return whether a method is part of this package."""
    return method.__module__.startswith("sparsefw.methods.")
