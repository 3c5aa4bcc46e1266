"""Names of runs in tables and figures: short where that is enough, longer where two runs would have the same name."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sparsefw.config_base import flatten
from sparsefw.plotting.palette import BASELINE
from sparsefw.report.records import Run
from sparsefw.scalars import is_number

LEARNING = (
    "data",
    "model",
    "method",
    "train",
    "sizes",
)  # the parts of a configuration that make two runs different methods


def learning_settings(run: Run) -> dict[str, Any]:
    """Return the settings that make two runs different methods, under flat keys such as "train.lr"."""
    values = run.record.config.values
    return flatten({part: values[part] for part in LEARNING if part in values})


def named(runs: Sequence[Run]) -> list[Run]:
    """Return the runs with distinct names, those of SGD first.

    Equal names of different methods are extended by the settings that differ, equal methods by their seeds.
    """
    alike = defaultdict(list)
    for run in runs:
        alike[run.task, run.method].append(run)
    methods = {}
    for group in alike.values():
        for run, method in zip(group, _distinct_methods(group), strict=True):
            methods[run.folder] = method
    seeds = defaultdict(set)
    for run in runs:
        seeds[run.task, methods[run.folder]].add(run.seed)

    def label(run: Run) -> str:
        method = methods[run.folder]
        return f"{method}, seed {run.seed}" if len(seeds[run.task, method]) > 1 else method

    renamed = [replace(run, method=methods[run.folder], label=label(run)) for run in runs]
    return sorted(renamed, key=lambda run: (run.task, run.method_name != BASELINE, _natural_order(run.label)))


def shown(value: Any) -> str:
    """Return a setting as a table shows it.

    >>> shown(0.10), shown("sgd")
    ('0.1', 'sgd')
    """
    return f"{value:g}" if isinstance(value, float) else str(value)


def differing(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the flat keys that do not have one value in all of these flat configurations, in their order."""
    keys = dict.fromkeys(key for config in configs for key in config)
    return [key for key in keys if len({exact(config.get(key)) for config in configs}) > 1]


def exact(value: Any) -> str:
    """Return a text that is equal for equal values only: `shown` rounds to six digits, and 1 equals 1.0.

    >>> exact(1) == exact(1.0), exact(0.12345671) == exact(0.12345674)
    (True, False)
    """
    return repr(float(value)) if is_number(value) else shown(value)


def _natural_order(text: str) -> list[tuple[float, str]]:
    """Return a sorting key that puts k=2 before k=10."""
    parts = re.split(r"(\d+(?:\.\d+)?)", text)
    return [(float(part), "") if i % 2 else (-1.0, part) for i, part in enumerate(parts)]


def _distinct_methods(group: list[Run]) -> list[str]:
    """Return a name for each of these runs of one name: runs of different settings get different ones."""
    configs = [learning_settings(run) for run in group]
    keys = differing(configs)
    settings = {tuple(shown(config.get(key)) for key in keys) for config in configs}
    if len(keys) > 2 and len({run.name for run in group}) == len(settings):  # the recipe's name is shorter
        return [f"{run.method} ({run.name})" for run in group]
    methods = []
    for run, config in zip(group, configs, strict=True):
        # A setting that is off or unset needs no word, as long as the others have one.
        given = [key for key in keys if config.get(key) not in (None, False)]
        words = [f"{key.rpartition('.')[2]}={shown(config[key])}" for key in given]
        methods.append(" ".join([run.method, *words]))
    return methods
