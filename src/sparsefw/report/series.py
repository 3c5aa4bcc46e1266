"""Curves of runs that differ in their seed only, put together; and the one sentence that says what they show."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sparsefw.report.read import ReportError, Run, RunCurve

KINDS = {"filters": "filters", "rank": "singular values", "weights": "weights"}
FORMS = {"removed": "removed", "masked": "set to zero"}
SHOWN = {"accuracy": "accuracy", "mean_iou": "mean IoU"}
NBSP = "\u00a0"  # a number stays with its unit when lines break
KEPT = 1.0  # points: what loses no more than this against its own dense network counts as kept


@dataclass(frozen=True)
class Spread:
    """A number over seeds. One that is nan makes the mean nan: a collapse is not averaged away."""

    mean: float
    low: float
    high: float
    deviation: float
    count: int


@dataclass(frozen=True)
class Series:
    """One method's curve: at every ratio, plain, refit (None if not measured) and parameters left (None if masked)."""

    method: str
    seeds: int
    dense: Spread
    dense_parameters: float | None
    ratios: tuple[float, ...]
    plain: tuple[Spread, ...]
    refit: tuple[Spread | None, ...]
    parameters: tuple[float | None, ...]

    def at(self, ratio: float) -> tuple[Spread, Spread | None] | None:
        """plain and refit at this ratio, None if it was not measured."""
        if ratio not in self.ratios:
            return None
        index = self.ratios.index(ratio)
        return self.plain[index], self.refit[index]

    def keeps(self, value: Spread) -> bool:
        return value.mean >= self.dense.mean - KEPT


@dataclass(frozen=True)
class Comparison:
    """All methods' curves of one kind and form, measured alike."""

    kind: str
    form: str
    metric: str
    split: str
    series: tuple[Series, ...]

    @property
    def what(self) -> str:
        """What is removed: "filters", "singular values", ..."""
        return KINDS.get(self.kind, self.kind)

    @property
    def done(self) -> str:
        return FORMS.get(self.form, self.form)

    @property
    def measure(self) -> str:
        return SHOWN.get(self.metric, self.metric)

    @property
    def ratios(self) -> list[float]:
        return sorted({ratio for one in self.series for ratio in one.ratios})

    @property
    def names(self) -> dict[str, str]:
        """Of every method, as short as can be."""
        return short_names([one.method for one in self.series])

    @property
    def telling(self) -> float:
        """The largest ratio at which some method, plain, is as good as dense; the smallest one if there is none."""
        kept = [r for one in self.series for r, value in zip(one.ratios, one.plain, strict=True) if one.keeps(value)]
        return max(kept, default=self.ratios[0])


def kinds_of(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Every (kind, form) that some run has a curve of: the kinds of the paper first, removed before masked."""
    found = {(curve.kind, curve.form) for run in runs for curve in run.curves}
    order = [*KINDS]
    return sorted(
        found, key=lambda kf: (order.index(kf[0]) if kf[0] in order else len(order), kf[0], kf[1] != "removed", kf[1])
    )


def compared(runs: Sequence[Run], kind: str, form: str) -> Comparison:
    curves: dict[str, list[RunCurve]] = {}
    for run in runs:
        if (curve := run.curve(kind, form)) is not None:
            curves.setdefault(run.method, []).append(curve)
    measured = {(curve.metric, curve.split) for group in curves.values() for curve in group}
    if not measured:
        there = ", ".join(f"{k}-{f}" for k, f in kinds_of(runs)) or "none"
        raise ReportError(f"no run has a curve {kind}-{form}; curves that are there: {there}")
    if len(measured) > 1 or len({run.task for run in runs if run.curve(kind, form)}) > 1:
        raise ReportError(
            f"curves {kind}-{form} of different networks, data or metrics do not belong in one comparison"
        )
    metric, split = measured.pop()
    return Comparison(kind, form, metric, split, tuple(_series(method, group) for method, group in curves.items()))


def headline(comparison: Comparison) -> str:
    """What is seen, by a rule that favours nobody: every method, plain, at the most telling ratio, best first."""
    ratio, names = comparison.telling, comparison.names
    values = {names[one.method]: at[0].mean for one in comparison.series if (at := one.at(ratio))}
    share = f"{100 * ratio:.3g}{NBSP}% of the {comparison.what} {comparison.done}"
    return f"{share}, {_trained_again(comparison)}: {ranked(values, comparison.measure)}"


def _trained_again(comparison: Comparison) -> str:
    """What the rest is about is that nothing is; runs of `sparsefw retrain` are, and their labels begin with it."""
    told = [one.method.split(" ")[0] == "retrained" for one in comparison.series]
    return "after retraining" if all(told) else "no retraining but where it is named" if any(told) else "no retraining"


def refit_sentence(comparison: Comparison) -> str | None:
    """The same for refit, None where nothing was refit."""
    pairs = {comparison.names[one.method]: one.at(comparison.telling) for one in comparison.series}
    values = {name: pair[1].mean for name, pair in pairs.items() if pair and pair[1]}
    if not values:
        return None
    return f"With what is left fitted in closed form to unlabelled images: {ranked(values, comparison.measure)}."


def short_names(methods: Sequence[str]) -> dict[str, str]:
    """Without the words that tell nothing apart: "SparseFW k=0.1" where all of SparseFW have "filters" and "w=0.33"."""
    words = {method: method.split(" ") for method in methods}
    short = {}
    for method, (first, *rest) in words.items():
        family = [other for other in words.values() if other[0] == first]
        telling = [word for word in rest if not all(word in other for other in family)]
        short[method] = " ".join([first, *telling])
    return short if len(set(short.values())) == len(short) else {method: method for method in methods}


def ranked(values: Mapping[str, float], measure: str) -> str:
    """ "96.2 % accuracy with SparseFW, 19.4 % with SGD": best first, of many the best and the worst."""
    order = sorted(values.items(), key=lambda pair: (math.isnan(pair[1]), -pair[1]))
    texts = [
        f"{percent(value)}{'' if place else ' ' + measure} with {name}" for place, (name, value) in enumerate(order)
    ]
    return ", ".join(texts) if len(texts) <= 4 else f"{texts[0]}, ..., {texts[-1]} ({len(texts)} methods)"


def spread(values: Sequence[float]) -> Spread:
    if any(map(math.isnan, values)):
        return Spread(math.nan, math.nan, math.nan, math.nan, len(values))
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return Spread(statistics.fmean(values), min(values), max(values), deviation, len(values))


def percent(value: float) -> str:
    return f"{value:.1f}{NBSP}%" if math.isfinite(value) else "no number (nan)"


def _series(method: str, curves: list[RunCurve]) -> Series:
    ratios = sorted({point.ratio for curve in curves for point in curve.points})
    at = [[point for curve in curves for point in curve.points if point.ratio == ratio] for ratio in ratios]
    refits = [[point.refit for point in points if point.refit is not None] for points in at]
    return Series(
        method,
        len(curves),
        spread([curve.dense for curve in curves]),
        _mean([curve.parameters for curve in curves]),
        tuple(ratios),
        tuple(spread([point.plain for point in points]) for points in at),
        tuple(spread(values) if values else None for values in refits),
        tuple(_mean([point.parameters for point in points]) for points in at),
    )


def _mean(sizes: Sequence[int | None]) -> float | None:
    known = [size for size in sizes if size is not None]
    return statistics.fmean(known) if known else None
