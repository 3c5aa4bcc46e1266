"""Runs of one method that differ in their settings, as a sweep makes them: heat maps of two settings, and a table of all."""

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
from sparsefw.report.names import LEARNING, differing, exact, family_name, flat, shown
from sparsefw.report.records import Run, RunCurve
from sparsefw.report.series import FORMS, SHOWN, kinds_of, percent
from sparsefw.report.tables import Table, shown_ratio

PAIRS = 3  # of settings that are drawn at most, those with the most values first


@dataclass(frozen=True)
class Tried:
    """One configuration: its varied settings, and the means over its seeds of dense, of every ratio plain, and over these."""

    run: Run
    settings: Mapping[str, Any]
    seeds: int
    dense: float
    plain: tuple[float, ...]

    @property
    def mean(self) -> float:
        """As a sweep chooses: where nothing could be computed, nothing is right."""
        return statistics.fmean(0.0 if math.isnan(value) else value for value in self.plain)


@dataclass(frozen=True)
class Family:
    """All configurations of a method with a curve of one kind, measured on one split, best first."""

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
    def about(self) -> str:
        return f"{self.name}, {kind_of(self.kind).units} {FORMS.get(self.form, self.form)}"

    @property
    def span(self) -> str:
        """The ratios that all configurations have."""
        return " to ".join(dict.fromkeys((shown_ratio(self.ratios[0]), shown_ratio(self.ratios[-1]))))

    @property
    def best(self) -> str:
        """In words: the first of them."""
        first = self.tried[0]
        settings = ", ".join(f"{key} = {shown(value)}" for key, value in first.settings.items())
        told = f"Best of {len(self.tried)} on {self.split} images: {settings} ({first.run.folder.name})"
        figures = f"{percent(first.mean)} in the mean over {self.span}, plain; dense {percent(first.dense)}"
        warning = " Chosen on the images it is tested on, its figure flatters." if self.split == "test" else ""
        return f"{told}: {figures}.{warning}"

    def maps(self) -> list[tuple[HeatMap, HeatMap]]:
        """For every pair of numeric settings, the mean over all ratios, and the dense network of the same runs."""
        values = {key: _numbers(one.settings.get(key) for one in self.tried) for key in self.keys}
        several = sorted((key for key in self.keys if len(values[key]) > 1), key=lambda key: -len(values[key]))
        pairs = list(itertools.combinations(several, 2))[:PAIRS]
        return [self._maps(x, y, values[x], values[y]) for x, y in pairs]

    def _maps(self, x: str, y: str, across: list[float], up: list[float]) -> tuple[HeatMap, HeatMap]:
        cells: dict[tuple[Any, Any], Tried] = {}
        for one in self.tried:  # best first, and the first one stays
            cells.setdefault((one.settings.get(x), one.settings.get(y)), one)
        others = [key for key in self.keys if key not in (x, y)]
        fixed = f" In every cell, the best over {', '.join(others)}." if others else ""
        measure = f"{self.split} {SHOWN.get(self.metric, self.metric)}"
        what = f"{kind_of(self.kind).units} {FORMS.get(self.form, self.form)}"
        titles = (f"Mean over {self.span} of the {what}, plain", "The dense networks of the same runs")

        def grid(part: str) -> tuple[tuple[float, ...], ...]:
            return tuple(tuple(getattr(cells.get((a, b)), part, math.nan) for a in across) for b in up)

        def drawn(title: str, part: str) -> HeatMap:
            names = tuple(map(shown, across)), tuple(map(shown, up))
            return HeatMap(title, f"{self.name}: {measure} in %.{fixed}", x, y, *names, grid(part), measure)

        return drawn(titles[0], "mean"), drawn(titles[1], "dense")

    def table(self) -> Table:
        seeds = any(one.seeds > 1 for one in self.tried)
        header = ("run", *self.keys, *(["seeds"] * seeds), "dense", "mean", *map(shown_ratio, self.ratios))
        rows = tuple(
            (
                one.run.folder.name,
                *(shown(one.settings.get(key, "-")) for key in self.keys),
                *([str(one.seeds)] * seeds),
                *(f"{value:.2f}" for value in (one.dense, one.mean, *one.plain)),
            )
            for one in self.tried
        )
        return Table((), header, rows)


def families(runs: Sequence[Run]) -> list[Family]:
    """Those of runs of one task that are worth a look: with heat maps, or with curves on validation images."""
    alike: dict[tuple[str, str | None], list[Run]] = defaultdict(list)
    for run in runs:
        alike[family_name(run.config), sweep_row(run)].append(run)
    rows = Counter(name for name, _ in alike)
    found = []
    for (method, row), group in alike.items():
        name = method if row is None or rows[method] == 1 else f"{method} ({row})"
        for kind, form in dict.fromkeys([*kinds_of(group, "validation"), *kinds_of(group)]):
            one = _family(name, group, kind, form)
            if one is not None and (one.split == "validation" or one.maps()):
                found.append(one)
    return found


def sweep_row(run: Run) -> str | None:
    """The sweep and the row that a run is of, whose name and folder both tell the configuration's number."""
    number = run.folder.name.partition("-seed-")[0]
    stem = run.name.removesuffix(f"-{number}")
    return stem if number.isdigit() and stem != run.name else None


def _family(name: str, group: Sequence[Run], kind: str, form: str) -> Family | None:
    """On validation images if any was measured on them: what was measured on others is never mixed in."""
    split = "validation" if (kind, form) in kinds_of(group, "validation") else "test"
    having = [(run, curve) for run in group if (curve := run.curve(kind, form, split)) is not None]
    metric = having[0][1].metric
    having = [(run, curve) for run, curve in having if curve.metric == metric]
    settings = [flat({part: run.config[part] for part in LEARNING if part in run.config}) for run, _ in having]
    keys = differing(settings)
    ratios = sorted(set.intersection(*({point.ratio for point in curve.points} for _, curve in having)))
    if not keys or not ratios:
        return None
    seeds: dict[tuple[str, ...], list[tuple[Run, RunCurve]]] = defaultdict(list)
    varied: dict[tuple[str, ...], dict[str, Any]] = {}
    for (run, curve), own in zip(having, settings, strict=True):
        key = tuple(exact(own.get(k)) for k in keys)
        seeds[key].append((run, curve))
        varied[key] = {k: own.get(k) for k in keys}
    tried = [_tried(pairs, varied[key], ratios) for key, pairs in seeds.items()]
    tried.sort(key=lambda one: -one.mean)
    other = sum(run.curve(kind, form, split) is None and run.has_curves("test") for run in group)
    note = (
        "" if split == "test" or not other else f"Runs without a curve on validation images, not among these: {other}."
    )
    return Family(name, kind, form, split, metric, tuple(keys), tuple(ratios), tuple(tried), note)


def _tried(pairs: Sequence[tuple[Run, RunCurve]], settings: Mapping[str, Any], ratios: Sequence[float]) -> Tried:
    at = [{point.ratio: point.plain for point in curve.points} for _, curve in pairs]
    plain = tuple(statistics.fmean(values[ratio] for values in at) for ratio in ratios)
    first = min((run for run, _ in pairs), key=lambda run: run.seed)
    return Tried(
        first, settings, len({run.seed for run, _ in pairs}), statistics.fmean(curve.dense for _, curve in pairs), plain
    )


def _numbers(values: Iterable[Any]) -> list[float]:
    return sorted({value for value in values if isinstance(value, int | float) and not isinstance(value, bool)})
