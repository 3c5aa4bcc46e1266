"""What figures show, described once: canvas.py draws it with matplotlib for files, payload.py writes it down for the page."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from sparsefw.report.looks import COLOURS, Look, looks
from sparsefw.report.records import ReportError, Run, Size
from sparsefw.report.series import (
    NBSP,
    SHOWN,
    Comparison,
    Series,
    Spread,
    headline,
    percent,
    ranked,
    short_names,
    spread,
)

SIZE_AXES = {
    "parameters": "parameters left",
    "macs": "MACs left",
    "bytes": "bytes left",
    "milliseconds": "milliseconds per batch",
}
SPECTRA = ("filters", "singular values")
FLOOR = 1e-6  # what a logarithmic axis shows of zeros
SHARE = "share of the constrained weights"
DECAYED = "filters, directions or weights below 5 % of the largest of their layer"
COMPRESSIBLE = "the share of the norm in those that would be kept"
FEW = 12  # epochs: each has a marker
CLOSE = 0.06  # of the axis: ratios closer than that cannot all be labelled on a linear one


@dataclass(frozen=True)
class Axis:
    """One that a chart can be drawn over, from left to right or reversed; `at`: where it is labelled, if not where it fits.

    Scale "kept" is logarithmic in what is left, 100 - x, so that ratios close to 100 % are not on top of each other.
    """

    key: str
    label: str
    scale: Literal["linear", "log", "kept"] = "linear"
    unit: Literal["%", "count", ""] = ""
    at: tuple[float, ...] = ()
    reverse: bool = False


EPOCHS = (Axis("epoch", "epoch"),)


@dataclass(frozen=True)
class Line:
    """One curve: its values over every axis's x, nan where there is a gap; level is where it would be if nothing were lost.

    One without label shares its look with another that has one. part: "plain", "refit", or what else can be hidden alone.
    """

    label: str
    method: str
    part: str
    look: Look
    solid: bool
    x: Mapping[str, Sequence[float]]
    y: Sequence[Spread]
    level: float | None = None

    def last(self, key: str) -> tuple[float, float] | None:
        """The last point that can be drawn."""
        pairs = zip(self.x[key][::-1], self.y[::-1], strict=True)
        return next(((x, y.mean) for x, y in pairs if math.isfinite(y.mean) and math.isfinite(x)), None)


@dataclass(frozen=True)
class Chart:
    """Lines over one axis or another. marked: every value is a point that was measured, and has a marker.

    A vertical axis of "%" shows what there is to see, one of shares all from 0 to 100 %.
    """

    lines: tuple[Line, ...]
    axes: tuple[Axis, ...]
    y_label: str
    y_scale: Literal["%", "share", "log", "count"] = "%"
    title: str = ""
    subtitle: str = ""
    marked: bool = True


@dataclass(frozen=True)
class HeatMap:
    """Values, in percent, at every pair of two settings; nan where no run has that pair."""

    title: str
    subtitle: str
    x_label: str
    y_label: str
    x: tuple[str, ...]
    y: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]
    value_label: str


Style = Mapping[str, Look]


def curves_chart(comparison: Comparison, style: Style | None = None) -> Chart:
    """The metric against the ratio removed, or a size: plain dashed, refit solid; from the worst to the best seed as a band."""
    style = style or looks(one.method for one in comparison.series)
    ratios = tuple(100 * ratio for ratio in comparison.ratios)
    gaps = [high - low for low, high in pairwise(ratios)]
    close = bool(gaps) and min(gaps) < CLOSE * (ratios[-1] - ratios[0])
    axes = [Axis("ratio", f"{comparison.what} {comparison.done}", "kept" if close else "linear", "%", ratios)]
    for key, label in SIZE_AXES.items():
        if any(_known(one, key) for one in comparison.series):
            axes.append(Axis(key, label, "log", "" if key == "milliseconds" else "count", reverse=True))
    lines = []
    for one in comparison.series:
        look, name, level = style[one.method], comparison.names[one.method], one.dense.mean
        x = {axis.key: [_at(one, axis.key, i) for i in range(len(one.ratios))] for axis in axes}
        lines.append(Line(f"{name} plain", one.method, "plain", look, False, x, one.plain, level))
        if any(one.refit):
            refit = [value or spread([math.nan]) for value in one.refit]
            lines.append(Line(f"{name} refit", one.method, "refit", look, True, x, refit, level))
    return Chart(
        tuple(lines),
        tuple(axes),
        f"{comparison.split} {comparison.measure}",
        title=headline(comparison),
        subtitle=legend_sentence(comparison),
    )


def sizes_title(comparison: Comparison, key: str) -> str:
    """Values at one size, if all methods have the same one at the most telling ratio."""
    ratio, what = comparison.telling, SIZE_AXES[key]
    at = [(one, one.ratios.index(ratio)) for one in comparison.series if ratio in one.ratios and _known(one, key)]
    shares = {f"{100 * getattr(one.sizes[i], key) / getattr(one.dense_size, key):.2g}" for one, i in at}
    if len(shares) != 1:
        return f"{comparison.split} {comparison.measure} against {what}".capitalize().replace("macs", "MACs")
    values = {comparison.names[one.method]: one.plain[i].mean for one, i in at}
    thing = what.removesuffix(" left")
    return f"{shares.pop()}{NBSP}% of the {thing} left: {ranked(values, comparison.measure)}"


def legend_sentence(comparison: Comparison) -> str:
    """How to read the lines."""
    names = comparison.names
    dense = ", ".join(f"{percent(one.dense.mean)} {names[one.method]}" for one in comparison.series[:4])
    refit = "Solid: refit in closed form, no labels. " if any(any(one.refit) for one in comparison.series) else ""
    bands = " Bands: from the worst to the best seed." if any(one.seeds > 1 for one in comparison.series) else ""
    more = ", ..." if len(comparison.series) > 4 else ""
    return f"{refit}Dashed: plain, BatchNorm statistics recomputed only. Thin lines: the dense networks ({dense}{more}).{bands}"


def training_chart(runs: Sequence[Run], style: Style | None = None) -> Chart:
    """The metric after every epoch: validation solid where there is one, training dashed."""
    trained = [run for run in runs if run.epochs]
    if not trained:
        raise ReportError("no run has finished an epoch")
    style, names = style or looks(run.method for run in trained), short_names([run.method for run in trained])
    lines, ends = [], {}
    validated = any(epoch.validation is not None for run in trained for epoch in run.epochs)
    alike = defaultdict(list)
    for run in trained:
        alike[run.method].append(run)
    for method, group in alike.items():
        name = names[method]
        (x, y), (train_x, train_y) = _history(group, "validation"), _history(group, "train")
        lines += [Line("" if x else name, method, "training", style[method], False, {"epoch": train_x}, train_y)]
        lines += [Line(name, method, "validation", style[method], True, {"epoch": x}, y)] if x else []
        if lines[-1].solid == validated and (end := lines[-1].last("epoch")):
            ends[name] = end[1]
    split = "validation" if validated else "training"
    metric = SHOWN[trained[0].metric]
    return Chart(
        tuple(lines),
        EPOCHS,
        metric,
        title=f"After training: {ranked(ends, f'{split} {metric}')}" if ends else "",
        subtitle="Solid: on validation data. Dashed: on training data." if validated else "",
        marked=False,
    )


def decay_chart(runs: Sequence[Run], style: Style | None = None) -> Chart | None:
    """What had become of the constrained weights after every epoch; None where nothing is constrained."""
    alike = defaultdict(list)
    for run in runs:
        if any(epoch.decayed is not None for epoch in run.epochs):
            alike[run.method].append(run)
    if not alike:
        return None
    style, names = style or looks(alike), short_names(list(alike))
    lines, ends = [], {}
    for method, group in alike.items():
        for part, label in (("decayed", names[method]), ("compressible", "")):
            x, y = _history(group, part)
            lines.append(Line(label, method, part, style[method], part == "decayed", {"epoch": x}, y))
            if label:
                ends[label] = y[-1].mean
    title = f"After training: {ranked(ends, 'decayed')}"
    sentence = f"Solid: decayed, {DECAYED}. Dashed: compressible, {COMPRESSIBLE}."
    return Chart(tuple(lines), EPOCHS, SHARE, "share", title=title, subtitle=sentence, marked=False)


def run_charts(run: Run) -> list[Chart]:
    """The training of one run: the metric; and over the same epochs, what became of the constrained weights, if any."""
    if not run.epochs:
        raise ReportError(f"{run.folder}: no epoch has ended")
    own, few = looks([run.method])[run.method], len(run.epochs) <= FEW

    def line(part: str, name: str, look: Look, solid: bool = True) -> list[Line]:
        x, y = _history([run], part)
        return [Line(name, run.method, part, look, solid, {"epoch": x}, y)] if x else []

    green, pink, orange = (own._replace(colour=colour) for colour in COLOURS[1:4])
    measured = line("validation", "validation", own) + line("train", "training", own, solid=False)
    shares = line("decayed", "decayed", green) + line("compressible", "compressible", orange)
    metric, end = SHOWN[run.metric], measured[0].last("epoch") if measured else None
    title = f"{run.name}: {percent(end[1])} {measured[0].label} {metric}" if end else run.name
    charts = [Chart(tuple(measured), EPOCHS, metric, title=title, marked=few)]
    if shares:
        sentence = f"Decayed: {DECAYED}. Compressible: {COMPRESSIBLE}."
        charts[0] = replace(charts[0], subtitle=sentence)
        charts.append(Chart(tuple(shares), EPOCHS, SHARE, "share", marked=few))
    if renewed := line("renewed", "renewed", pink):
        charts.append(Chart(tuple(renewed), EPOCHS, "how often they were renewed", "count", marked=few))
    return charts


def spectra_charts(runs: Sequence[Run], style: Style | None = None) -> dict[str, dict[str, Chart]]:
    """Layer -> what -> magnitudes, largest first, relative to the largest; of every method the run with the lowest seed."""
    first: dict[str, Run] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        if run.spectra:
            first.setdefault(run.method, run)
    chosen = {run.method: first[run.method] for run in runs if run.method in first}
    style, names = style or looks(chosen), short_names(list(chosen))
    found: dict[str, dict[str, Chart]] = {}
    for layer in dict.fromkeys(layer for run in chosen.values() for layer in run.spectra):
        for what in SPECTRA:
            lines = []
            for method, run in chosen.items():
                if (spectrum := run.spectra.get(layer, {}).get(what)) is None:
                    continue
                x = [100 * (i + 1) / spectrum.count for i in spectrum.index]
                top = spectrum.value[0] or 1.0
                y = [spread([max(value / top, FLOOR)]) for value in spectrum.value]
                lines.append(Line(names[method], method, what, style[method], True, {"share": x}, y))
            axis = Axis("share", f"share of the {what}, largest first", unit="%")
            label = "norm of a filter" if what == "filters" else "singular value"
            chart = Chart(tuple(lines), (axis,), f"{label} / largest", "log", f"{layer}: {what}", marked=False)
            found.setdefault(layer, {})[what] = chart
    return found


def _known(series: Series, key: str) -> bool:
    def has(size: Size) -> bool:
        return bool(getattr(size, key))

    return has(series.dense_size) and all(map(has, series.sizes))


def _at(series: Series, key: str, i: int) -> float:
    if key == "ratio":
        return 100 * series.ratios[i]
    value = getattr(series.sizes[i], key)
    return math.nan if value is None else value


def _history(group: Sequence[Run], part: str) -> tuple[list[float], list[Spread]]:
    values = defaultdict(list)
    for run in group:
        for epoch in run.epochs:
            if (value := getattr(epoch, part)) is not None:
                values[epoch.number].append(value)
    return [float(number) for number in sorted(values)], [spread(values[number]) for number in sorted(values)]
