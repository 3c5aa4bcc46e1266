"""Curves of runs that differ in their seed only, put together; and the one sentence that says what they show."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sparsefw.kinds import in_order, kind_of
from sparsefw.plotting.charts import Spread, spread_of
from sparsefw.report.names import RETRAINED
from sparsefw.report.records import SIZES, How, ReportError, Run, RunCurve, Size

FORMS = {"removed": "removed", "masked": "set to zero"}
SHOWN = {"accuracy": "accuracy", "mean_iou": "mean IoU"}
MEASURED = (
    "score=",
    "allocation=",
)  # words of a name that tell how a curve was measured, not how a network was trained
NBSP = "\u00a0"  # a number stays with its unit when lines break
KEPT = 1.0  # points: what loses no more than this against its own dense network counts as kept


@dataclass(frozen=True)
class Series:
    """One method's curve: at every ratio, plain, refit (None if not measured) and the mean size.

    folder: of the run with the lowest seed; epochs: of all its runs; images: those that its networks were calibrated on.
    """

    method: str
    folder: Path
    seeds: int
    epochs: tuple[int, ...]
    how: How
    images: tuple[int, ...]
    dense: Spread
    dense_size: Size
    ratios: tuple[float, ...]
    plain: tuple[Spread, ...]
    refit: tuple[Spread | None, ...]
    sizes: tuple[Size, ...]

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
        return kind_of(self.kind).units

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


def kinds_of(runs: Sequence[Run], split: str = "test") -> list[tuple[str, str]]:
    """Every (kind, form) that some run has a curve of: in the order of kinds, removed before masked."""
    found = {(curve.kind, curve.form) for run in runs for curve in run.curves if curve.split == split}
    order = [kind.name for kind in in_order({kind_of(kind) for kind, _ in found})]
    return sorted(found, key=lambda kf: (order.index(kf[0]), kf[1] != "removed", kf[1]))


def compared(runs: Sequence[Run], kind: str, form: str, split: str = "test") -> Comparison:
    """The curves of one split; where score or allocation differ, so do the names."""
    having = [(run, curve) for run in runs if (curve := run.curve(kind, form, split)) is not None]
    if not having:
        there = ", ".join(f"{k}-{f}" for k, f in kinds_of(runs, split)) or "none"
        raise ReportError(f"no run has a curve {kind}-{form}; curves that are there: {there}")
    if len({(run.task, curve.metric) for run, curve in having}) > 1:
        raise ReportError(
            f"curves {kind}-{form} of different networks, data or metrics do not belong in one comparison"
        )
    hows = Counter(_rule(curve.how) for _, curve in having)
    usual = min(hows, key=lambda how: (-hows[how], how != _rule(How()), how))
    groups: dict[str, list[tuple[Run, RunCurve]]] = {}
    for run, curve in having:
        rule = _rule(curve.how)
        told = zip(("score", "allocation"), rule, usual, strict=True)
        words = [f"{key}={value or 'default'}" for key, value, common in told if value != common]
        groups.setdefault(" ".join([run.method, *words]), []).append((run, curve))
    series = tuple(_series(method, group) for method, group in groups.items())
    return Comparison(kind, form, having[0][1].metric, split, series)


def notes_on(comparison: Comparison) -> list[str]:
    """What a reader must know before comparing: trainings of unequal length, unequal numbers of seeds, and the like."""
    series, names = comparison.series, comparison.names
    found = []
    epochs = sorted({number for one in series for number in one.epochs})
    if len(epochs) > 1:
        long = ", ".join(f"{names[one.method]} {_range(one.epochs)}" for one in series)
        few = f" ({long})" if len(series) <= 6 else ""
        found.append(f"These networks were trained for {epochs[0]} to {epochs[-1]} epochs{few}: not for equally long.")
    if len({one.seeds for one in series}) > 1:
        told = ", ".join(f"{names[one.method]} {one.seeds}" for one in series)
        found.append(f"Not all have the same number of seeds: {told}.")
    if again := [names[one.method] for one in series if _is_retrained(one)]:
        found.append(f"Trained again after pruning, unlike the others: {', '.join(again)}.")
    rules = {_rule(one.how) for one in series}
    if rules != {_rule(How())}:
        which = " and ".join(
            f"score {score}, allocation {allocation or 'as by default'}" for score, allocation in sorted(rules)
        )
        found.append(f"Measured with {which}.")
    images = sorted({number for one in series for number in one.images})
    if len(images) > 1:
        found.append(f"Calibrated on {images[0]:,} to {images[-1]:,} images: not on equally many.")
    return found


def _rule(how: How) -> tuple[str, str]:
    return how.score, how.allocation or ""


def _range(numbers: Sequence[int]) -> str:
    return " to ".join(dict.fromkeys((str(min(numbers)), str(max(numbers))))) if numbers else "?"


def headline(comparison: Comparison) -> str:
    """What is seen, by a rule that favours nobody: every method, plain, at the most telling ratio, best first."""
    ratio, names = comparison.telling, comparison.names
    values = {names[one.method]: at[0].mean for one in comparison.series if (at := one.at(ratio))}
    dense = {names[one.method]: one.dense.mean for one in comparison.series}
    share = f"{100 * ratio:.3g}{NBSP}% of the {comparison.what} {comparison.done}"
    return f"{share}, {_trained_again(comparison)}: {ranked(values, comparison.measure, dense)}"


def _trained_again(comparison: Comparison) -> str:
    """What the rest is about is that nothing is; runs of `sparsefw retrain` are, and their labels begin with it."""
    told = [_is_retrained(one) for one in comparison.series]
    return "after retraining" if all(told) else "no retraining but where it is named" if any(told) else "no retraining"


def _is_retrained(series: Series) -> bool:
    return series.method.split(" ")[0] == RETRAINED


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
    sizes = Counter(first for first, *_ in words.values())
    shared = Counter((first, word) for first, *rest in words.values() for word in set(rest))
    short = {}
    for method, (first, *rest) in words.items():
        telling = [word for word in rest if shared[first, word] < sizes[first] or word.startswith(MEASURED)]
        short[method] = " ".join([first, *telling])
    return short if len(set(short.values())) == len(short) else {method: method for method in methods}


def ranked(values: Mapping[str, float], measure: str, dense: Mapping[str, float] | None = None) -> str:
    """ "96.2 % accuracy with SparseFW (dense 96.0 %), 19.4 % with SGD": best first, of many the best and the worst."""
    order = sorted(values.items(), key=lambda pair: (math.isnan(pair[1]), -pair[1]))
    texts = [
        f"{percent(value)}{'' if place else ' ' + measure} with {name}"
        + (f" ({'' if place else 'dense '}{percent(dense[name])})" if dense else "")
        for place, (name, value) in enumerate(order)
    ]
    return ", ".join(texts) if len(texts) <= 4 else f"{texts[0]}, ..., {texts[-1]} ({len(texts)} methods)"


def percent(value: float) -> str:
    return f"{value:.1f}{NBSP}%" if math.isfinite(value) else "no number (nan)"


def _series(method: str, group: Sequence[tuple[Run, RunCurve]]) -> Series:
    curves = [curve for _, curve in group]
    ratios = sorted({point.ratio for curve in curves for point in curve.points})
    at = [[point for curve in curves for point in curve.points if point.ratio == ratio] for ratio in ratios]
    refits = [[point.refit for point in points if point.refit is not None] for points in at]
    first = min(group, key=lambda pair: pair[0].seed)
    return Series(
        method,
        first[0].folder,
        len(curves),
        tuple(sorted({epochs for run, _ in group if (epochs := epochs_of(run))})),
        first[1].how,
        tuple(sorted({curve.how.calibration for curve in curves if curve.how.calibration is not None})),
        spread_of([curve.dense for curve in curves]),
        _mean([curve.size for curve in curves]),
        tuple(ratios),
        tuple(spread_of([point.plain for point in points]) for points in at),
        tuple(spread_of(values) if values else None for values in refits),
        tuple(_mean([point.size for point in points]) for points in at),
    )


def epochs_of(run: Run) -> int:
    """How long it was to be trained."""
    train = run.config.get("train")
    epochs = train.get("epochs") if isinstance(train, Mapping) else None
    return epochs if isinstance(epochs, int) else len(run.epochs)


def _mean(sizes: Sequence[Size]) -> Size:
    mean = Size()
    for key in SIZES:
        known = [value for size in sizes if (value := getattr(size, key)) is not None]
        mean = replace(mean, **{key: statistics.fmean(known)}) if known else mean
    return mean
