"""Curves of runs that differ in their seed only, combined; and the sentences that state their results."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sparsefw.kinds import in_order, kind_of
from sparsefw.plotting.charts import Spread, spread_of
from sparsefw.report.records import ReportError, Run
from sparsefw.runfolder.schema import SIZES, CurveRecord, CurveSettings, Size

FORM_NAMES = {"removed": "removed", "masked": "set to zero"}
METRIC_NAMES = {"accuracy": "accuracy", "mean_iou": "mean IoU"}
NBSP = "\u00a0"  # keeps a number and its unit on one line
KEPT = 1.0  # points that a compressed network may lose against its own dense network and still count as good
MOST_RANKED = 4  # methods that a sentence lists


@dataclass(frozen=True)
class Series:
    """The curve of one method: at every ratio, plain, refit (None where it was not measured) and the mean size.

    chosen         the metric with the recovery that was chosen without labels; None where none was
    method         the method in words, with `rule_words`
    method_name    its registered name, such as "sgd"
    rule_words     how its curve was measured, where that differs from the other curves
    folder         of the run with the lowest seed
    epochs         planned lengths of its trainings
    images         numbers of calibration images
    retrained      whether its networks were pruned and trained again
    """

    method: str
    method_name: str
    rule_words: tuple[str, ...]
    folder: Path
    seeds: int
    epochs: tuple[int, ...]
    retrained: bool
    settings: CurveSettings
    images: tuple[int, ...]
    dense: Spread
    dense_size: Size
    ratios: tuple[float, ...]
    plain: tuple[Spread, ...]
    refit: tuple[Spread | None, ...]
    chosen: tuple[Spread | None, ...]
    sizes: tuple[Size, ...]

    def at(self, ratio: float) -> tuple[Spread, Spread | None] | None:
        """Return plain and refit at this ratio; None if it was not measured."""
        if ratio not in self.ratios:
            return None
        index = self.ratios.index(ratio)
        return self.plain[index], self.refit[index]

    def is_good(self, value: Spread) -> bool:
        """Return whether the metric of a compressed network is about that of the dense one."""
        return value.mean >= self.dense.mean - KEPT


@dataclass(frozen=True)
class Comparison:
    """The curves of all methods of one kind and form, measured on one split."""

    kind: str
    form: str
    metric: str
    split: str
    series: tuple[Series, ...]

    @property
    def units(self) -> str:
        """The units that are removed: "filters", "singular values", ..."""
        return kind_of(self.kind).units

    @property
    def removal(self) -> str:
        """The form of the removal in words: "removed" or "set to zero"."""
        return FORM_NAMES.get(self.form, self.form)

    @property
    def metric_name(self) -> str:
        return METRIC_NAMES.get(self.metric, self.metric)

    @property
    def ratios(self) -> list[float]:
        return sorted({ratio for series in self.series for ratio in series.ratios})

    @property
    def names(self) -> dict[str, str]:
        """The shortest distinct name of every method."""
        rule_words = {word for series in self.series for word in series.rule_words}
        return short_names([series.method for series in self.series], rule_words)

    @property
    def headline_ratio(self) -> float:
        """The largest ratio at which some method, plain, is as good as dense; the smallest one if there is none."""
        good = [
            ratio
            for series in self.series
            for ratio, value in zip(series.ratios, series.plain, strict=True)
            if series.is_good(value)
        ]
        return max(good, default=self.ratios[0])


def kinds_of(runs: Sequence[Run], split: str = "test") -> list[tuple[str, str]]:
    """Return every (kind, form) that some run has a curve of: in the order of kinds, removed before masked."""
    pairs = {(curve.kind, curve.form) for run in runs for curve in run.curves if curve.split == split}
    order = [kind.name for kind in in_order({kind_of(kind) for kind, _ in pairs})]
    return sorted(pairs, key=lambda pair: (order.index(pair[0]), pair[1] != "removed", pair[1]))


def compared(runs: Sequence[Run], kind: str, form: str, split: str = "test") -> Comparison:
    """Compare the curves of these runs; where score or allocation differ, so do the names.

    Raises:
        ReportError: no run has such a curve, or their tasks or metrics differ.
    """
    pairs = [(run, curve) for run in runs if (curve := run.curve(kind, form, split)) is not None]
    if not pairs:
        available = ", ".join(f"{k}-{f}" for k, f in kinds_of(runs, split)) or "none"
        raise ReportError(f"no run has a curve {kind}-{form}; available curves: {available}")
    if len({(run.task, curve.metric) for run, curve in pairs}) > 1:
        raise ReportError(
            f"curves {kind}-{form} of different networks, data or metrics do not belong in one comparison"
        )
    counts = Counter(_rule(curve.settings) for _, curve in pairs)
    usual = min(counts, key=lambda rule: (-counts[rule], rule != _rule(CurveSettings()), rule))
    groups: dict[tuple[str, tuple[str, ...]], list[tuple[Run, CurveRecord]]] = {}
    for run, curve in pairs:
        settings = zip(("score", "allocation"), _rule(curve.settings), usual, strict=True)
        words = tuple(f"{key}={value or 'default'}" for key, value, common in settings if value != common)
        groups.setdefault((run.method, words), []).append((run, curve))
    series = tuple(_series(method, words, group) for (method, words), group in groups.items())
    return Comparison(kind, form, pairs[0][1].metric, split, series)


def notes_on(comparison: Comparison) -> list[str]:
    """Return the reservations about a comparison: trainings of unequal length, unequal numbers of seeds, and the like."""
    names = comparison.names
    every = comparison.series
    notes = []
    epochs = sorted({number for series in every for number in series.epochs})
    if len(epochs) > 1:
        lengths = ", ".join(f"{names[series.method]} {_range(series.epochs)}" for series in every)
        listed = f" ({lengths})" if len(every) <= 6 else ""
        notes.append(
            f"These networks were trained for {epochs[0]} to {epochs[-1]} epochs{listed}, not all equally long."
        )
    if len({series.seeds for series in every}) > 1:
        counts = ", ".join(f"{names[series.method]} {series.seeds}" for series in every)
        notes.append(f"Not all have the same number of seeds: {counts}.")
    retrained = [names[series.method] for series in every if series.retrained]
    if retrained:
        notes.append(f"Trained again after pruning, unlike the others: {', '.join(retrained)}.")
    rules = {_rule(series.settings) for series in every}
    if rules != {_rule(CurveSettings())}:
        texts = [f"score {score}, {allocation or 'default'} allocation" for score, allocation in sorted(rules)]
        notes.append(f"Measured with {' and '.join(texts)}.")
    images = sorted({number for series in every for number in series.images})
    if len(images) > 1:
        notes.append(f"Calibrated on {images[0]:,} to {images[-1]:,} images, not all on equally many.")
    return notes


def _rule(settings: CurveSettings) -> tuple[str, str]:
    """Return the settings by which curves are distinguished."""
    return settings.score, settings.allocation or ""


def _range(numbers: Sequence[int]) -> str:
    return " to ".join(dict.fromkeys((str(min(numbers)), str(max(numbers))))) if numbers else "?"


def headline(comparison: Comparison) -> str:
    """Return the result of a comparison: all methods at one ratio, plain, best first. The rule favours no method."""
    ratio = comparison.headline_ratio
    names = comparison.names
    values = {names[series.method]: at[0].mean for series in comparison.series if (at := series.at(ratio))}
    dense = {names[series.method]: series.dense.mean for series in comparison.series}
    share = f"{100 * ratio:.3g}{NBSP}% of the {comparison.units} {comparison.removal}"
    return f"{share}, {_retraining_text(comparison)}: {ranked(values, comparison.metric_name, dense)}"


def _retraining_text(comparison: Comparison) -> str:
    """Say whether networks were trained again: methods of this package need no retraining, its rivals may use it."""
    retrained = [series.retrained for series in comparison.series]
    if all(retrained):
        return "after retraining"
    return "no retraining unless named" if any(retrained) else "no retraining"


def refit_sentence(comparison: Comparison) -> str | None:
    """Return the result of refit in one sentence; None if nothing was refitted."""
    ratio = comparison.headline_ratio
    pairs = {comparison.names[series.method]: series.at(ratio) for series in comparison.series}
    values = {name: pair[1].mean for name, pair in pairs.items() if pair and pair[1]}
    if not values:
        return None
    return f"With the remaining weights fitted in closed form to unlabelled images: {ranked(values, comparison.metric_name)}."


# What a run was trained for is part of its method's name, also where no other run differs in it.
_KEPT_WORDS = frozenset({"over", "sizes", "sizes,", "fine-tuned"})


def short_names(methods: Sequence[str], kept: Collection[str] = ()) -> dict[str, str]:
    """Return every method without the words that all methods of its first word share.

    Args:
        kept: words that are never left out.

    >>> short_names(["SparseFW filters k=0.1", "SparseFW filters k=0.3", "SGD"])
    {'SparseFW filters k=0.1': 'SparseFW k=0.1', 'SparseFW filters k=0.3': 'SparseFW k=0.3', 'SGD': 'SGD'}
    >>> short_names(["SparseFW filters k=0.3 over sizes", "SGD"])
    {'SparseFW filters k=0.3 over sizes': 'SparseFW over sizes', 'SGD': 'SGD'}
    """
    words = {method: method.split(" ") for method in methods}
    sizes = Counter(first for first, *_ in words.values())
    shared = Counter((first, word) for first, *rest in words.values() for word in set(rest))
    short = {}
    for method, (first, *rest) in words.items():
        distinctive = [
            word for word in rest if shared[first, word] < sizes[first] or word in kept or word in _KEPT_WORDS
        ]
        short[method] = " ".join([first, *distinctive])
    return short if len(set(short.values())) == len(short) else {method: method for method in methods}


def ranked(values: Mapping[str, float], measure: str, dense: Mapping[str, float] | None = None) -> str:
    """Return values in words, best first; of many, the best and the worst.

    Such as "96.2 % accuracy with SparseFW (dense 96.0 %), 19.4 % with SGD (97.5 %)".
    """
    texts = []
    for place, (name, value) in enumerate(sorted(values.items(), key=lambda pair: (math.isnan(pair[1]), -pair[1]))):
        first = place == 0
        text = f"{percent(value)}{' ' + measure if first else ''} with {name}"
        texts.append(f"{text} ({'dense ' if first else ''}{percent(dense[name])})" if dense else text)
    return ", ".join(texts) if len(texts) <= MOST_RANKED else f"{texts[0]}, ..., {texts[-1]} ({len(texts)} methods)"


def percent(value: float) -> str:
    """Return a percentage with one digit.

    >>> percent(96.04).replace(NBSP, " "), percent(math.nan)
    ('96.0 %', 'no number (nan)')
    """
    return f"{value:.1f}{NBSP}%" if math.isfinite(value) else "no number (nan)"


def _series(method: str, rule_words: tuple[str, ...], group: Sequence[tuple[Run, CurveRecord]]) -> Series:
    runs = [run for run, _ in group]
    curves = [curve for _, curve in group]
    ratios = sorted({point.ratio for curve in curves for point in curve.points})
    points_at = [[point for curve in curves for point in curve.points if point.ratio == ratio] for ratio in ratios]
    refits = [[point.refit for point in points if point.refit is not None] for points in points_at]
    chosen = [[point.metric for point in points if point.metric is not None] for points in points_at]
    first_run, first_curve = min(group, key=lambda pair: pair[0].seed)
    images = {curve.settings.calibration for curve in curves if curve.settings.calibration is not None}
    return Series(
        method=" ".join([method, *rule_words]),
        method_name=first_run.method_name,
        rule_words=rule_words,
        folder=first_run.folder,
        seeds=len(curves),
        epochs=tuple(sorted({run.planned_epochs for run in runs if run.planned_epochs})),
        retrained=any(run.retrained for run in runs),
        settings=first_curve.settings,
        images=tuple(sorted(images)),
        dense=spread_of([curve.dense for curve in curves]),
        dense_size=_mean([curve.size for curve in curves]),
        ratios=tuple(ratios),
        plain=tuple(spread_of([point.plain for point in points]) for points in points_at),
        refit=tuple(spread_of(values) if values else None for values in refits),
        chosen=tuple(spread_of(values) if values else None for values in chosen),
        sizes=tuple(_mean([point.size for point in points]) for points in points_at),
    )


def _mean(sizes: Sequence[Size]) -> Size:
    """Return the mean of what was measured."""
    mean = Size()
    for name in SIZES:
        known = [value for size in sizes if (value := getattr(size, name)) is not None]
        mean = replace(mean, **{name: statistics.fmean(known)}) if known else mean
    return mean
