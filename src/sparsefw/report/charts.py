"""The charts of runs: curves over ratios and sizes, training, decay, spectra."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from sparsefw.kinds import FILTERS, RANK
from sparsefw.plotting.charts import LOGARITHMIC_FLOOR, Axis, Chart, Line, Spread, spread_of
from sparsefw.plotting.palette import LINE_COLOURS, Look, looks_of
from sparsefw.report.records import ReportError, Run, Size
from sparsefw.report.series import (
    NBSP,
    SHOWN,
    Comparison,
    Series,
    headline,
    percent,
    ranked,
    short_names,
)

SIZE_AXES = {
    "parameters": "parameters left",
    "macs": "MACs left",
    "bytes": "bytes left",
    "milliseconds": "milliseconds per batch",
}
SHARE = "share of the constrained weights"
DECAYED = "filters, directions or weights below 5 % of the largest of their layer"
COMPRESSIBLE = "the share of the norm in those that would be kept"
MOST_MARKED_EPOCHS = 12  # each has a marker
TOO_CLOSE = 0.06  # of the axis: ratios closer than that cannot all be labelled on a linear one
EPOCH_AXES = (Axis("epoch", "epoch"),)
MAGNITUDES = (FILTERS.units, RANK.units)
Style = Mapping[str, Look]


def curves_chart(comparison: Comparison, style: Style | None = None) -> Chart:
    """Chart the metric against the ratio removed, or a size: plain dashed, refit solid, worst to best seed as a band."""
    style = style or looks_of(one.method for one in comparison.series)
    ratios = tuple(100 * ratio for ratio in comparison.ratios)
    gaps = [high - low for low, high in pairwise(ratios)]
    close = bool(gaps) and min(gaps) < TOO_CLOSE * (ratios[-1] - ratios[0])
    axes = [Axis("ratio", f"{comparison.what} {comparison.done}", "kept" if close else "linear", "%", ratios)]
    for key, label in SIZE_AXES.items():
        if any(_known(one, key) for one in comparison.series):
            axes.append(Axis(key, label, "log", "" if key == "milliseconds" else "count", reverse=True))
    lines = []
    for one in comparison.series:
        look = style[one.method]
        name = comparison.names[one.method]
        level = one.dense.mean
        x = {axis.key: [_at(one, axis.key, i) for i in range(len(one.ratios))] for axis in axes}
        lines.append(Line(f"{name} plain", one.method, "plain", look, False, x, one.plain, level))
        if any(one.refit):
            refit = [value or spread_of([math.nan]) for value in one.refit]
            lines.append(Line(f"{name} refit", one.method, "refit", look, True, x, refit, level))
    return Chart(
        tuple(lines),
        tuple(axes),
        f"{comparison.split} {comparison.measure}",
        title=headline(comparison),
        subtitle=legend_sentence(comparison),
    )


def sizes_title(comparison: Comparison, key: str) -> str:
    """Tell the values at one size, if all methods have the same one at the most telling ratio."""
    ratio = comparison.telling
    what = SIZE_AXES[key]
    at = [(one, one.ratios.index(ratio)) for one in comparison.series if ratio in one.ratios and _known(one, key)]
    shares = {f"{100 * getattr(one.sizes[i], key) / getattr(one.dense_size, key):.2g}" for one, i in at}
    if len(shares) != 1:
        return f"{comparison.split} {comparison.measure} against {what}".capitalize().replace("macs", "MACs")
    values = {comparison.names[one.method]: one.plain[i].mean for one, i in at}
    thing = what.removesuffix(" left")
    return f"{shares.pop()}{NBSP}% of the {thing} left: {ranked(values, comparison.measure)}"


def legend_sentence(comparison: Comparison) -> str:
    """Say how to read the lines."""
    names = comparison.names
    dense = ", ".join(f"{percent(one.dense.mean)} {names[one.method]}" for one in comparison.series[:4])
    refit = "Solid: refit in closed form, no labels. " if any(any(one.refit) for one in comparison.series) else ""
    bands = " Bands: from the worst to the best seed." if any(one.seeds > 1 for one in comparison.series) else ""
    more = ", ..." if len(comparison.series) > 4 else ""
    return f"{refit}Dashed: plain, BatchNorm statistics recomputed only. Thin lines: the dense networks ({dense}{more}).{bands}"


def training_chart(runs: Sequence[Run], style: Style | None = None) -> Chart:
    """Chart the metric after every epoch: validation solid where there is one, training dashed."""
    trained = [run for run in runs if run.epochs]
    if not trained:
        raise ReportError("no run has finished an epoch")
    style = style or looks_of(run.method for run in trained)
    names = short_names([run.method for run in trained])
    lines = []
    ends = {}
    validated = any(epoch.validation is not None for run in trained for epoch in run.epochs)
    alike = defaultdict(list)
    for run in trained:
        alike[run.method].append(run)
    for method, group in alike.items():
        name = names[method]
        x, y = _history(group, "validation")
        train_x, train_y = _history(group, "train")
        label = "" if x else name
        lines.append(Line(label, method, "training", style[method], False, {"epoch": train_x}, train_y))
        if x:
            lines.append(Line(name, method, "validation", style[method], True, {"epoch": x}, y))
        if lines[-1].solid == validated and (end := lines[-1].last_point("epoch")):
            ends[name] = end[1]
    split = "validation" if validated else "training"
    metric = SHOWN[trained[0].metric]
    return Chart(
        tuple(lines),
        EPOCH_AXES,
        metric,
        title=f"After training: {ranked(ends, f'{split} {metric}')}" if ends else "",
        subtitle="Solid: on validation data. Dashed: on training data." if validated else "",
        marked=False,
    )


def decay_chart(runs: Sequence[Run], style: Style | None = None) -> Chart | None:
    """Chart what had become of the constrained weights after every epoch, None where nothing is constrained."""
    alike = defaultdict(list)
    for run in runs:
        if any(epoch.decayed is not None for epoch in run.epochs):
            alike[run.method].append(run)
    if not alike:
        return None
    style = style or looks_of(alike)
    names = short_names(list(alike))
    lines = []
    ends = {}
    for method, group in alike.items():
        for part, label in (("decayed", names[method]), ("compressible", "")):
            x, y = _history(group, part)
            lines.append(Line(label, method, part, style[method], part == "decayed", {"epoch": x}, y))
            if label:
                ends[label] = y[-1].mean
    title = f"After training: {ranked(ends, 'decayed')}"
    sentence = f"Solid: decayed, {DECAYED}. Dashed: compressible, {COMPRESSIBLE}."
    return Chart(tuple(lines), EPOCH_AXES, SHARE, "share", title=title, subtitle=sentence, marked=False)


def run_charts(run: Run) -> list[Chart]:
    """Chart the training of one run: the metric, and over the same epochs what became of the constrained weights, if any."""
    if not run.epochs:
        raise ReportError(f"{run.folder}: no epoch has ended")
    own = looks_of([run.method])[run.method]
    few = len(run.epochs) <= MOST_MARKED_EPOCHS

    def line(part: str, name: str, look: Look, solid: bool = True) -> list[Line]:
        x, y = _history([run], part)
        return [Line(name, run.method, part, look, solid, {"epoch": x}, y)] if x else []

    green, pink, orange = (own._replace(colour=colour) for colour in LINE_COLOURS[1:4])
    measured = line("validation", "validation", own) + line("train", "training", own, solid=False)
    shares = line("decayed", "decayed", green) + line("compressible", "compressible", orange)
    metric = SHOWN[run.metric]
    end = measured[0].last_point("epoch") if measured else None
    title = f"{run.name}: {percent(end[1])} {measured[0].label} {metric}" if end else run.name
    charts = [Chart(tuple(measured), EPOCH_AXES, metric, title=title, marked=few)]
    if shares:
        sentence = f"Decayed: {DECAYED}. Compressible: {COMPRESSIBLE}."
        charts[0] = replace(charts[0], subtitle=sentence)
        charts.append(Chart(tuple(shares), EPOCH_AXES, SHARE, "share", marked=few))
    if renewed := line("renewed", "renewed", pink):
        charts.append(Chart(tuple(renewed), EPOCH_AXES, "how often they were renewed", "count", marked=few))
    return charts


def spectra_charts(runs: Sequence[Run], style: Style | None = None) -> dict[str, dict[str, Chart]]:
    """Chart magnitudes, largest first and relative to it, by layer and what they are of: of every method its lowest seed."""
    first: dict[str, Run] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        if run.spectra:
            first.setdefault(run.method, run)
    chosen = {run.method: first[run.method] for run in runs if run.method in first}
    style = style or looks_of(chosen)
    names = short_names(list(chosen))
    found: dict[str, dict[str, Chart]] = {}
    for layer in dict.fromkeys(layer for run in chosen.values() for layer in run.spectra):
        for what in MAGNITUDES:
            lines = []
            for method, run in chosen.items():
                if (spectrum := run.spectra.get(layer, {}).get(what)) is None:
                    continue
                x = [100 * (i + 1) / spectrum.count for i in spectrum.index]
                top = spectrum.value[0] or 1.0
                y = [spread_of([max(value / top, LOGARITHMIC_FLOOR)]) for value in spectrum.value]
                lines.append(Line(names[method], method, what, style[method], True, {"share": x}, y))
            axis = Axis("share", f"share of the {what}, largest first", unit="%")
            label = "norm of a filter" if what == FILTERS.units else "singular value"
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
    numbers = sorted(values)
    return [float(number) for number in numbers], [spread_of(values[number]) for number in numbers]
