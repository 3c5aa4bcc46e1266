"""Every method in all of its forms, and SparseFW in all of its variants. A registered method is tested without being listed."""

from __future__ import annotations

from typing import Any

from sparsefw.methods import METHODS

VARIANTS: dict[str, dict[str, Any]] = {
    "k-sparse": {"kind": "filters", "gauge": "k-sparse"},
    "rank-k-sparse": {"kind": "rank", "gauge": "k-sparse"},
    "diameter": {"rescale": "diameter"},
    "anneal": {"anneal": True, "k": 0.4, "w": 1.0},
    "rank-anneal": {"kind": "rank", "rescale": "gradient", "anneal": True, "w_start": 2.0},
    "coupled": {"rescale": "gradient", "coupled": True},
    "alone": {"coupled": False},
    "everything": {"everything": True, "w": 2.0},
    "sticky": {"stickiness": 0.9},
    "glt-epoch": {"name": "glt", "every": "epoch", "lasso": 0.5},
    "fr-l1": {"name": "fr", "force": "l1", "strength": 1e-4},
    "sfp": {"name": "sfp", "k": 0.9},
    "sfp-late": {"name": "sfp", "k": 0.9, "start_epoch": 1},
    "cram": {"name": "cram", "plus": False, "ratios": [0.5]},
}
FORMS: dict[str, dict[str, Any]] = {
    form or name: {"name": name, **settings}
    for name, method in METHODS.items()
    for form, settings in method.forms.items()
} | {name: {"name": "sparsefw", **settings} for name, settings in VARIANTS.items()}


def changes(form: str) -> list[str]:
    """Return the settings of a form as `--set` takes them."""
    return [
        f"method.{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in FORMS[form].items()
    ]
