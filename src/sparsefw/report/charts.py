"""Charts of runs: curves over ratios and sizes, training, decay, spectra."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from sparsefw.kinds import FILTERS, RANK, Kind
from sparsefw.plotting.charts import LOGARITHMIC_FLOOR, Axis, Chart, Line, Spread, spread_of
from sparsefw.plotting.palette import LINE_COLOURS, LineStyle, line_styles
from sparsefw.report.records import ReportError, Run
from sparsefw.report.series import (
    METRIC_NAMES,
    NBSP,
    Comparison,
    Series,
    headline,
    percent,
    ranked,
    short_names,
)
from sparsefw.runfolder.schema import Size

SIZE_NAMES = {"parameters": "parameters", "macs": "MACs", "bytes": "bytes", "milliseconds": "milliseconds per batch"}
SIZE_AXES = {key: name if key == "milliseconds" else f"{name} left" for key, name in SIZE_NAMES.items()}
SHARE = "share of the constrained weights"
DECAYED = "filters, directions or weights below 5 % of the largest of their layer"
COMPRESSIBLE = "the share of the norm in those that would be kept"
MOST_MARKED_EPOCHS = 12  # in longer trainings, epochs have no markers
TOO_CLOSE = 0.06  # share of the axis: ratios closer than that cannot all be labelled on a linear axis
MOST_DENSE = 4  # dense networks that a legend lists
EPOCH_AXES = (Axis("epoch", "epoch"),)
SPECTRUM_KINDS = (FILTERS, RANK)  # the kinds whose magnitudes a run records
Style = Mapping[str, LineStyle]


def curves_chart(comparison: Comparison, style: Style | None = None) -> Chart:
    """Chart the metric against the ratio removed, or a size: plain dashed, refit solid, worst to best seed as a band."""
    style = style or line_styles({series.method: series.method_name for series in comparison.series})
    ratios = tuple(100 * ratio for ratio in comparison.ratios)
    gaps = [high - low for low, high in pairwise(ratios)]
    close = bool(gaps) and min(gaps) < TOO_CLOSE * (ratios[-1] - ratios[0])
    axes = [Axis("ratio", f"{comparison.units} {comparison.removal}", "kept" if close else "linear", "%", ratios)]
    for key, label in SIZE_AXES.items():
        if any(_known(series, key) for series in comparison.series):
            axes.append(Axis(key, label, "log", "" if key == "milliseconds" else "count", reverse=True))
    lines = []
    for series in comparison.series:
        method = series.method
        look = style[method]
        name = comparison.names[method]
        level = series.dense.mean
        x = {axis.key: [_position(series, axis.key, i) for i in range(len(series.ratios))] for axis in axes}
        lines.append(Line(f"{name} plain", method, "plain", look, False, x, series.plain, level))
        if any(series.refit):
            refit = [value or spread_of([math.nan]) for value in series.refit]
            lines.append(Line(f"{name} refit", method, "refit", look, True, x, refit, level))
    return Chart(
        tuple(lines),
        tuple(axes),
        f"{comparison.split} {comparison.metric_name}",
        title=headline(comparison),
        subtitle=legend_sentence(comparison),
    )


def sizes_title(comparison: Comparison, key: str) -> str:
    """Return the values at one size, if all methods have the same size at the headline's ratio; else name the axes."""
    ratio = comparison.headline_ratio
    measured = [series for series in comparison.series if ratio in series.ratios and _known(series, key)]
    places = [(series, series.ratios.index(ratio)) for series in measured]
    shares = {f"{100 * getattr(series.sizes[i], key) / getattr(series.dense_size, key):.2g}" for series, i in places}
    if len(shares) != 1:
        axes = f"{comparison.split} {comparison.metric_name} against {SIZE_AXES[key]}"
        return axes[0].upper() + axes[1:]
    values = {comparison.names[series.method]: series.plain[i].mean for series, i in places}
    return f"{shares.pop()}{NBSP}% of the {SIZE_NAMES[key]} left: {ranked(values, comparison.metric_name)}"


def legend_sentence(comparison: Comparison) -> str:
    """Say how to read the lines."""
    names = comparison.names
    listed = comparison.series[:MOST_DENSE]
    dense = ", ".join(f"{percent(series.dense.mean)} {names[series.method]}" for series in listed)
    has_refit = any(any(series.refit) for series in comparison.series)
    refit = "Solid: refit in closed form, no labels. " if has_refit else ""
    has_seeds = any(series.seeds > 1 for series in comparison.series)
    bands = " Bands: from the worst to the best seed." if has_seeds else ""
    more = ", ..." if len(comparison.series) > MOST_DENSE else ""
    return f"{refit}Dashed: plain, BatchNorm statistics recomputed only. Thin lines: the dense networks ({dense}{more}).{bands}"


def training_chart(runs: Sequence[Run], style: Style | None = None) -> Chart:
    """Chart the metric after every epoch: validation solid where there is one, training dashed."""
    trained = [run for run in runs if run.epochs]
    if not trained:
        raise ReportError("no run has finished an epoch")
    style = style or line_styles({run.method: run.method_name for run in trained})
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
    metric = METRIC_NAMES.get(trained[0].metric, trained[0].metric)
    return Chart(
        tuple(lines),
        EPOCH_AXES,
        metric,
        title=f"After training: {ranked(ends, f'{split} {metric}')}" if ends else "",
        subtitle="Solid: on validation data. Dashed: on training data." if validated else "",
        marked=False,
    )


def decay_chart(runs: Sequence[Run], style: Style | None = None) -> Chart | None:
    """Chart the state of the constrained weights after every epoch; None where nothing is constrained."""
    alike = defaultdict(list)
    for run in runs:
        if any(epoch.decayed is not None for epoch in run.epochs):
            alike[run.method].append(run)
    if not alike:
        return None
    style = style or line_styles({method: group[0].method_name for method, group in alike.items()})
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
    """Chart the training of one run: the metric, and over the same epochs the state of the constrained weights, if any."""
    if not run.epochs:
        raise ReportError(f"{run.folder}: no epoch has ended")
    blue = line_styles({run.method: run.method_name})[run.method]
    few = len(run.epochs) <= MOST_MARKED_EPOCHS

    def line(part: str, name: str, look: LineStyle, solid: bool = True) -> list[Line]:
        x, y = _history([run], part)
        return [Line(name, run.method, part, look, solid, {"epoch": x}, y)] if x else []

    green, pink, orange = (blue._replace(colour=colour) for colour in LINE_COLOURS[1:4])
    measured = line("validation", "validation", blue) + line("train", "training", blue, solid=False)
    shares = line("decayed", "decayed", green) + line("compressible", "compressible", orange)
    metric = METRIC_NAMES.get(run.metric, run.metric)
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


def spectra_charts(runs: Sequence[Run], style: Style | None = None) -> dict[str, dict[Kind, Chart]]:
    """Chart the magnitudes of every layer, relative to the largest one, of the lowest seed of every method.

    Returns:
        layer -> kind (filters or rank) -> chart
    """
    first: dict[str, Run] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        if run.record.spectra.layers:
            first.setdefault(run.method, run)
    spectra = {run.method: first[run.method].record.spectra.layers for run in runs if run.method in first}
    style = style or line_styles({method: first[method].method_name for method in spectra})
    names = short_names(list(spectra))
    charts: dict[str, dict[Kind, Chart]] = {}
    for layer in dict.fromkeys(layer for layers in spectra.values() for layer in layers):
        for kind in SPECTRUM_KINDS:
            lines = []
            for method, layers in spectra.items():
                spectrum = layers.get(layer, {}).get(kind.name)
                if spectrum is None:
                    continue
                x = [100 * (i + 1) / spectrum.count for i in spectrum.index]
                largest = spectrum.value[0] or 1.0
                y = [spread_of([max(value / largest, LOGARITHMIC_FLOOR)]) for value in spectrum.value]
                lines.append(Line(names[method], method, kind.units, style[method], True, {"share": x}, y))
            axis = Axis("share", f"share of the {kind.units}, largest first", unit="%")
            label = "norm of a filter" if kind is FILTERS else "singular value"
            chart = Chart(tuple(lines), (axis,), f"{label} / largest", "log", f"{layer}: {kind.units}", marked=False)
            charts.setdefault(layer, {})[kind] = chart
    return charts


def _known(series: Series, key: str) -> bool:
    """Return whether a size is measured at every ratio, and of the dense network."""

    def has(size: Size) -> bool:
        return bool(getattr(size, key))

    return has(series.dense_size) and all(map(has, series.sizes))


def _position(series: Series, key: str, i: int) -> float:
    """Return where the i-th point is on an axis."""
    if key == "ratio":
        return 100 * series.ratios[i]
    value = getattr(series.sizes[i], key)
    return math.nan if value is None else value


def _history(group: Sequence[Run], part: str) -> tuple[list[float], list[Spread]]:
    """Return the epochs in which a figure was measured, and its spread over these runs."""
    values = defaultdict(list)
    for run in group:
        for epoch in run.epochs:
            if (value := getattr(epoch, part)) is not None:
                values[epoch.number].append(value)
    numbers = sorted(values)
    return [float(number) for number in numbers], [spread_of(values[number]) for number in numbers]
