"""The figures of a report: what is left of a network at every size, and how it was trained."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from sparsefw.report.canvas import Line, chart, looks, save_figure
from sparsefw.report.read import ReportError, Run
from sparsefw.report.series import (
    NBSP,
    SHOWN,
    Comparison,
    Series,
    Spread,
    compared,
    headline,
    kinds_of,
    percent,
    ranked,
    short_names,
    spread,
)


def curves_figure(runs: Sequence[Run], kind: str, form: str, *, title: str | None = None, width: float = 8.0) -> Figure:
    """The metric against the ratio removed: plain dashed, refit solid, dense a thin line; min to max of the seeds as a band.

    title: by default a sentence that says what is seen, "" for none (and then no subtitle either).
    """
    comparison = compared(runs, kind, form)
    ratios = comparison.ratios

    def arrange(axes: Axes) -> None:
        axes.set_xticks([100 * ratio for ratio in ratios] if len(ratios) <= 10 else axes.get_xticks())
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.3g} %")
        room = 4 * (ratios[-1] - ratios[0]) or 5
        axes.set_xlim(100 * ratios[0] - room, 100 * ratios[-1] + room / 4)

    return chart(
        _lines(comparison, lambda series: [100 * ratio for ratio in series.ratios]),
        x_label=f"{comparison.what} {comparison.done}",
        y_label=f"{comparison.split} {comparison.measure}",
        title=headline(comparison) if title is None else title,
        subtitle=legend_sentence(comparison) if title != "" else "",
        width=width,
        arrange=arrange,
    )


def sizes_figure(runs: Sequence[Run], kind: str, *, title: str | None = None, width: float = 8.0) -> Figure:
    """The metric against the parameters left, from the dense network on the left to the smallest one on the right."""
    comparison = compared(runs, kind, "removed")
    sized = [one for one in comparison.series if one.dense_parameters and None not in one.parameters]
    if not sized:
        raise ReportError(f"the curves {kind}-removed tell no parameters")
    lines = _lines(comparison, lambda series: [size or math.nan for size in series.parameters])

    def arrange(axes: Axes) -> None:
        axes.set_xscale("log")
        low = min(size for one in sized for size in one.parameters if size)
        high = max(one.dense_parameters or 0.0 for one in sized)
        axes.set_xlim(high * 1.08, low / 1.12)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 3) if high / low < 1000 else (1,)))
        axes.xaxis.set_major_formatter(lambda value, _: _count(value))
        axes.xaxis.set_minor_formatter(NullFormatter())

    return chart(
        lines,
        x_label="parameters left",
        y_label=f"{comparison.split} {comparison.measure}",
        title=_size_headline(comparison) if title is None else title,
        subtitle=legend_sentence(comparison) if title != "" else "",
        width=width,
        arrange=arrange,
    )


def training_figure(runs: Sequence[Run], *, title: str | None = None, width: float = 8.0) -> Figure:
    """The metric after every epoch: validation solid where there is one, training dashed."""
    trained = [run for run in runs if run.epochs]
    if not trained:
        raise ReportError("no run has finished an epoch")
    style, names = looks(run.method for run in trained), short_names(list(dict.fromkeys(run.method for run in trained)))
    lines, ends = [], {}
    validated = any(epoch.validation is not None for run in trained for epoch in run.epochs)
    for method, name in names.items():
        group = [run for run in trained if run.method == method]
        (x, y), (train_x, train_y) = _history(group, "validation"), _history(group, "train")
        lines += [Line("" if x else name, style[method][0], "", False, train_x, train_y)]
        lines += [Line(name, style[method][0], "", True, x, y)] if x else []
        if lines[-1].solid == validated and (end := lines[-1].last()):
            ends[name] = end[1]
    split = "validation" if validated else "training"
    metric = SHOWN[trained[0].metric]

    def arrange(axes: Axes) -> None:
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))

    return chart(
        lines,
        x_label="epoch",
        y_label=metric,
        title=f"After training: {ranked(ends, f'{split} {metric}')}" if title is None and ends else title or "",
        subtitle="Solid: on validation data. Dashed: on training data." if validated and title != "" else "",
        width=width,
        arrange=arrange,
    )


def write_figures(folder: Path, runs: Sequence[Run]) -> list[Path]:
    """Every figure these runs allow, as PNG and SVG; one set per task, in a folder of its own if there are several."""
    written = []
    tasks = list(dict.fromkeys(run.task for run in runs))
    for number, task in enumerate(tasks, 1):
        group = [run for run in runs if run.task == task]
        place = folder / f"task-{number}" if len(tasks) > 1 else folder
        for kind, form in kinds_of(group):
            written += save_figure(curves_figure(group, kind, form), place / _file(f"{kind}-{form}"))
            if has_sizes(group, kind, form):
                written += save_figure(sizes_figure(group, kind), place / _file(f"{kind}-parameters"))
        if any(run.epochs for run in group):
            written += save_figure(training_figure(group), place / "training")
    return written


def has_sizes(runs: Iterable[Run], kind: str, form: str) -> bool:
    curves = [run.curve(kind, form) for run in runs if form == "removed"]
    return any(curve and curve.parameters and curve.points[0].parameters for curve in curves)


def legend_sentence(comparison: Comparison) -> str:
    """How to read the lines."""
    names = comparison.names
    dense = ", ".join(f"{percent(one.dense.mean)} {names[one.method]}" for one in comparison.series[:4])
    refit = "Solid: refit in closed form, no labels. " if any(any(one.refit) for one in comparison.series) else ""
    bands = " Bands: from the worst to the best seed." if any(one.seeds > 1 for one in comparison.series) else ""
    more = ", ..." if len(comparison.series) > 4 else ""
    return f"{refit}Dashed: plain, BatchNorm statistics recomputed only. Thin lines: the dense networks ({dense}{more}).{bands}"


def _size_headline(comparison: Comparison) -> str:
    """Values at one size, if all methods have the same one at the most telling ratio."""
    at = [(one, one.ratios.index(comparison.telling)) for one in comparison.series if comparison.telling in one.ratios]
    shares = {f"{100 * (one.parameters[i] or 0) / (one.dense_parameters or math.inf):.2g}" for one, i in at}
    if len(shares) > 1:
        return f"{comparison.split} {comparison.measure} against parameters left".capitalize()
    values = {comparison.names[one.method]: one.plain[i].mean for one, i in at}
    return f"{shares.pop()}{NBSP}% of the parameters left: {ranked(values, comparison.measure)}"


def _lines(comparison: Comparison, x_of: Callable[[Series], list[float]]) -> list[Line]:
    style = looks(one.method for one in comparison.series)
    names = comparison.names
    lines = []
    for one in comparison.series:
        (colour, marker), name, level = style[one.method], names[one.method], one.dense.mean
        lines.append(Line(f"{name} plain", colour, marker, False, x_of(one), one.plain, level))
        if any(one.refit):
            refit = [value or spread([math.nan]) for value in one.refit]
            lines.append(Line(f"{name} refit", colour, marker, True, x_of(one), refit, level))
    return lines


def _history(group: Sequence[Run], split: str) -> tuple[list[float], list[Spread]]:
    values = defaultdict(list)
    for run in group:
        for epoch in run.epochs:
            if (value := getattr(epoch, split)) is not None:
                values[epoch.number].append(value)
    return [float(number) for number in sorted(values)], [spread(values[number]) for number in sorted(values)]


def _count(value: float) -> str:
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {letter}"
    return f"{value:.3g}"


def _file(name: str) -> str:
    """Kinds such as "2:4" name files, too."""
    return re.sub(r"[^A-Za-z0-9-]", "_", name)
