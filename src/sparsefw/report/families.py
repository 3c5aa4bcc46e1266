"""Families: runs of one method that differ in their settings, as sweeps make them, as heat maps and as a table."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparsefw.kinds import kind_of
from sparsefw.plotting.charts import HeatMap
from sparsefw.report.names import differing, exact, learning_settings, shown
from sparsefw.report.records import Run
from sparsefw.report.series import FORM_NAMES, METRIC_NAMES, kinds_of, percent
from sparsefw.report.tables import Table, shown_ratio
from sparsefw.runfolder.schema import CurveRecord
from sparsefw.scalars import is_number

MOST_PAIRS = 3  # of settings that are drawn, those with the most values first


@dataclass(frozen=True)
class Tried:
    """One configuration of a family.

    run        the one with the lowest seed
    settings   those that the family varies
    dense      the metric of the dense networks, mean over the seeds
    plain      the metric at every ratio, mean over the seeds
    """

    run: Run
    settings: Mapping[str, Any]
    seeds: int
    dense: float
    plain: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean over the ratios by which a sweep chooses; a network without finite outputs counts as 0."""
        return statistics.fmean(0.0 if math.isnan(value) else value for value in self.plain)


@dataclass(frozen=True)
class Family:
    """All configurations of a method with a curve of one kind and form, measured on one split, best first.

    keys     the settings that differ
    ratios   those that all configurations have
    """

    name: str
    kind: str
    form: str
    split: str
    metric: str
    keys: tuple[str, ...]
    ratios: tuple[float, ...]
    tried: tuple[Tried, ...]
    note: str

    @property
    def title(self) -> str:
        return f"{self.name}, {self.removal}"

    @property
    def removal(self) -> str:
        """What is removed and how: "filters set to zero"."""
        return f"{kind_of(self.kind).units} {FORM_NAMES.get(self.form, self.form)}"

    @property
    def span(self) -> str:
        """The range of the ratios."""
        return " to ".join(dict.fromkeys((shown_ratio(self.ratios[0]), shown_ratio(self.ratios[-1]))))

    @property
    def best(self) -> str:
        """The best configuration in words."""
        first = self.tried[0]
        settings = ", ".join(f"{key} = {shown(value)}" for key, value in first.settings.items())
        choice = f"Best of {len(self.tried)} on {self.split} images: {settings} ({first.run.folder.name})"
        figures = f"{percent(first.mean)} on average over {self.span}, plain; dense {percent(first.dense)}"
        warning = (
            " It was chosen on these test images, so its figure is too optimistic." if self.split == "test" else ""
        )
        return f"{choice}: {figures}.{warning}"

    def maps(self) -> list[tuple[HeatMap, HeatMap]]:
        """Return two heat maps for every pair of numeric settings: the mean over all ratios, and the dense networks."""
        values = {key: _numbers(tried.settings.get(key) for tried in self.tried) for key in self.keys}
        varied = sorted((key for key in self.keys if len(values[key]) > 1), key=lambda key: -len(values[key]))
        pairs = list(itertools.combinations(varied, 2))[:MOST_PAIRS]
        return [self._maps(x, y, values[x], values[y]) for x, y in pairs]

    def _maps(self, x: str, y: str, across: list[float], up: list[float]) -> tuple[HeatMap, HeatMap]:
        cells: dict[tuple[Any, Any], Tried] = {}
        for tried in self.tried:  # best first: a cell shows the first one
            cells.setdefault((tried.settings.get(x), tried.settings.get(y)), tried)
        others = [key for key in self.keys if key not in (x, y)]
        fixed = f" In every cell, the best over {', '.join(others)}." if others else ""
        measure = f"{self.split} {METRIC_NAMES.get(self.metric, self.metric)}"
        subtitle = f"{self.name}: {measure} in %.{fixed}"
        columns = tuple(map(shown, across))
        rows = tuple(map(shown, up))

        def heat_map(title: str, figure: str) -> HeatMap:
            values = tuple(tuple(getattr(cells.get((a, b)), figure, math.nan) for a in across) for b in up)
            return HeatMap(title, subtitle, x, y, columns, rows, values, measure)

        mean = heat_map(f"Mean over {self.span} of the {self.removal}, plain", "mean")
        return mean, heat_map("The dense networks of the same runs", "dense")

    def table(self) -> Table:
        """Return a row per configuration; the number of seeds where some have several."""
        several_seeds = any(tried.seeds > 1 for tried in self.tried)
        seeds_header = ["seeds"] if several_seeds else []
        header = ("run", *self.keys, *seeds_header, "dense", "mean", *map(shown_ratio, self.ratios))
        rows = []
        for tried in self.tried:
            settings = [shown(tried.settings.get(key, "-")) for key in self.keys]
            seeds = [str(tried.seeds)] if several_seeds else []
            figures = [f"{value:.2f}" for value in (tried.dense, tried.mean, *tried.plain)]
            rows.append((tried.run.folder.name, *settings, *seeds, *figures))
        return Table((), header, tuple(rows))


def families(runs: Sequence[Run]) -> list[Family]:
    """Return the families of runs of one task that have heat maps, or curves on validation images."""
    groups: dict[tuple[str, str | None], list[Run]] = defaultdict(list)
    for run in runs:
        groups[run.record.facts.family, sweep_row(run)].append(run)
    rows_of = Counter(method for method, _ in groups)
    shown_families = []
    for (method, row), group in groups.items():
        name = method if row is None or rows_of[method] == 1 else f"{method} ({row})"
        for kind, form in dict.fromkeys([*kinds_of(group, "validation"), *kinds_of(group)]):
            family = _family(name, group, kind, form)
            if family is not None and (family.split == "validation" or family.maps()):
                shown_families.append(family)
    return shown_families


def sweep_row(run: Run) -> str | None:
    """Return the sweep and the row of a run, such as "quick-filters-SGD"; None for a run of no sweep."""
    job = run.record.facts.job
    return None if job is None else f"{job.sweep}-{job.row}"


def _family(name: str, group: Sequence[Run], kind: str, form: str) -> Family | None:
    """Compare configurations on validation images if any was measured on them: splits are never mixed."""
    split = "validation" if (kind, form) in kinds_of(group, "validation") else "test"
    pairs = [(run, curve) for run in group if (curve := run.curve(kind, form, split)) is not None]
    metric = pairs[0][1].metric
    pairs = [(run, curve) for run, curve in pairs if curve.metric == metric]
    settings = [learning_settings(run) for run, _ in pairs]
    keys = differing(settings)
    ratios = sorted(set.intersection(*({point.ratio for point in curve.points} for _, curve in pairs)))
    if not keys or not ratios:
        return None
    seeds: dict[tuple[str, ...], list[tuple[Run, CurveRecord]]] = defaultdict(list)
    varied: dict[tuple[str, ...], dict[str, Any]] = {}
    for pair, values in zip(pairs, settings, strict=True):
        configuration = tuple(exact(values.get(key)) for key in keys)
        seeds[configuration].append(pair)
        varied[configuration] = {key: values.get(key) for key in keys}
    tried = [_tried(group, varied[configuration], ratios) for configuration, group in seeds.items()]
    tried.sort(key=lambda configuration: -configuration.mean)
    others = sum(run.curve(kind, form, split) is None and run.has_curves("test") for run in group)
    note = f"Runs that are left out because they have no curve on validation images: {others}."
    note = note if split == "validation" and others else ""
    return Family(name, kind, form, split, metric, tuple(keys), tuple(ratios), tuple(tried), note)


def _tried(pairs: Sequence[tuple[Run, CurveRecord]], settings: Mapping[str, Any], ratios: Sequence[float]) -> Tried:
    plain_by_ratio = [{point.ratio: point.plain for point in curve.points} for _, curve in pairs]
    runs = [run for run, _ in pairs]
    return Tried(
        run=min(runs, key=lambda run: run.seed),
        settings=settings,
        seeds=len({run.seed for run in runs}),
        dense=statistics.fmean(curve.dense for _, curve in pairs),
        plain=tuple(statistics.fmean(plain[ratio] for plain in plain_by_ratio) for ratio in ratios),
    )


def _numbers(values: Iterable[Any]) -> list[float]:
    return sorted({value for value in values if is_number(value)})
