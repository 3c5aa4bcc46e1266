"""What a run is called in tables and figures: short where that is enough, longer where two would be mixed up."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparsefw.report.records import Run

RETRAINED = "retrained"  # what the names of such runs begin with
SPELLED = {
    "sgd": "SGD", "sparsefw": "SparseFW", "ssl": "SSL", "glt": "GLT", "abfp": "ABFP", "sfp": "SFP", "nuc": "NUC",
    "svdenergy": "SVDEnergy", "fr": "FR", "trp": "TRP", "scion": "Scion", "sam": "SAM", "cram": "CrAM+", "masked": RETRAINED,
}  # fmt: skip
TOLD = ("k", "w", "strength", "threshold", "rho", "removed")  # settings that a name tells
LEARNING = ("data", "model", "method", "train")  # the parts of a configuration that make two runs different methods


def family_name(config: Mapping[str, Any]) -> str:
    """Such as "SGD", "NUC", or "SparseFW filters"."""
    method = config["method"]
    name = str(method["name"])
    return " ".join([SPELLED.get(name, name), *([str(method["kind"])] if method.get("kind") else [])])


def own_name(config: Mapping[str, Any]) -> str:
    """Such as "SGD", "NUC strength=0.0001", or "SparseFW filters k=0.3 w=0.33"."""
    method = config["method"]
    words = [family_name(config)]
    words += [f"{key}={shown(method[key])}" for key in TOLD if method.get(key) is not None]
    return " ".join(words)


def named(runs: Sequence[Run]) -> list[Run]:
    """The same runs, SGD first. Equal names of unequal methods are told apart by what differs, equal methods by seed."""
    alike = defaultdict(list)
    for run in runs:
        alike[run.task, run.method].append(run)
    methods = {run.folder: method for group in alike.values() for run, method in zip(group, _apart(group), strict=True)}
    seeds = defaultdict(set)
    for run in runs:
        seeds[run.task, methods[run.folder]].add(run.config.get("seed"))

    def label(run: Run) -> str:
        method = methods[run.folder]
        return f"{method}, seed {run.config.get('seed')}" if len(seeds[run.task, method]) > 1 else method

    found = [replace(run, method=methods[run.folder], label=label(run)) for run in runs]
    return sorted(found, key=lambda run: (run.task, run.method != SPELLED["sgd"], _natural(run.label)))


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"train": {"lr": 0.1}} -> {"train.lr": 0.1}."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def differing(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The flat keys that do not have one value in all of these flat configurations, in their order."""
    keys = dict.fromkeys(key for config in configs for key in config)
    return [key for key in keys if len({exact(config.get(key)) for config in configs}) > 1]


def exact(value: Any) -> str:
    """Equal for equal values only: what is shown has six digits, and 1 is 1.0."""
    return repr(float(value)) if isinstance(value, int | float) and not isinstance(value, bool) else shown(value)


def _natural(text: str) -> list[tuple[float, str]]:
    """Sorts k=2 before k=10."""
    parts = re.split(r"(\d+(?:\.\d+)?)", text)
    return [(float(part), "") if i % 2 else (-1.0, part) for i, part in enumerate(parts)]


def _apart(group: list[Run]) -> list[str]:
    configs = [flat({part: run.config[part] for part in LEARNING if part in run.config}) for run in group]
    keys = differing(configs)
    by_name = len({run.name for run in group}) == len({tuple(shown(c.get(key)) for key in keys) for c in configs})
    if len(keys) > 2 and by_name:  # a recipe's name says it shorter
        return [f"{run.method} ({run.name})" for run in group]
    # What is off or unset needs no word, as long as the others have one.
    texts = [
        [f"{key.rpartition('.')[2]}={shown(c.get(key))}" for key in keys if c.get(key) not in (None, False)]
        for c in configs
    ]
    return [" ".join([run.method, *words]) for run, words in zip(group, texts, strict=True)]
