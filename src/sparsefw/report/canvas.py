"""Line charts with their names at the line ends, drawn without pyplot: nothing global is read or left changed."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from sparsefw.durable import write_bytes
from sparsefw.report.charts import FLOOR, Axis, Chart, Line
from sparsefw.report.looks import GRID, INK, MARKERS, MUTED, PAPER, TEXT

MARKS = {"circle": "o", "square": "s", "diamond": "D", "triangle-up": "^", "triangle-down": "v"}
DASHED: dict[str, Any] = {
    "dash": (0, (4, 2.2)),
    "dot": (0, (1, 1.6)),
    "dashdot": (0, (4, 1.6, 1, 1.6)),
    "longdash": (0, (7, 2.2)),
    "longdashdot": (0, (7, 1.6, 1, 1.6)),
}
ROOM = 0.5  # inches that a label of the horizontal axis needs
SMALL, NORMAL, LARGE = 8.5, 9.5, 13.0  # points
DPI = 160
FIXED: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "sparsefw",
    "text.usetex": False,
}  # text stays text; equal input, equal file


def draw(chart: Chart, key: str | None = None, width: float = 8.0) -> Figure:
    """The chart over the axis of that key, by default its first. All lengths are inches, so that text is never squeezed."""
    axis = next(axis for axis in chart.axes if key in (None, axis.key))
    lines, title, subtitle = chart.lines, chart.title, chart.subtitle
    height = 2.0 + 0.3 * width
    heads = _wrapped(title, LARGE, width), _wrapped(subtitle, SMALL, width)
    top = 0.45 + (heads[0].count("\n") + 1) * 0.24 * bool(title) + (heads[1].count("\n") + 1) * 0.18 * bool(subtitle)
    top += 0.12 * bool(title)
    figure = Figure(figsize=(width, height + top), dpi=DPI)
    FigureCanvasAgg(figure)
    named = [line for line in lines if line.label]
    names = [_wrapped(line.label, SMALL, 0.36 * width) for line in named]
    few = len(named) <= 16  # of more, the longest name is enough to know how many stand in a row
    sizes = [_size(figure, name) for name in (names if few else [max(names, key=len)])]
    beside = few and sum(size[1] for size in sizes) <= height - 0.6
    right = max((size[0] for size in sizes), default=0.0) + 0.32 if beside and named else 0.15
    below = 0.0 if beside else 0.19 * math.ceil(len(named) / _across(sizes, width))
    figure.set_figheight(height + top + below)
    total = height + top + below
    box = (0.55 / width, (0.5 + below) / total, 1 - (0.55 + right) / width, 1 - (0.5 + below + top) / total)
    axes = figure.add_axes(box)
    draw_lines(axes, chart, axis)
    _dress(axes, axis.label, chart.y_label)
    if beside:
        _name_ends(figure, axes, axis, named, names, sizes)
    else:
        _legend(figure, named, _across(sizes, width))
    left = 0.08 / width
    figure.text(left, 1 - 0.1 / total, heads[0], size=LARGE, weight="bold", color=INK, va="top", parse_math=False)
    under = 0.16 + 0.24 * (heads[0].count("\n") + 1) * bool(title)
    figure.text(left, 1 - under / total, heads[1], size=SMALL, color=MUTED, va="top", linespacing=1.3, parse_math=False)
    return figure


def apart(wanted: Sequence[float], heights: Sequence[float], low: float, high: float) -> list[float]:
    """The centres closest to the wanted ones, in least squares, of labels that neither overlap nor leave [low, high]."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    shift, shifts = 0.0, []
    for before, i in zip([None, *order], order, strict=False):
        shift += 0.0 if before is None else (heights[before] + heights[i]) / 2
        shifts.append(shift)
    pools: list[list[float]] = []  # isotonic regression: neighbours out of order are pooled to their mean
    for i, moved in zip(order, shifts, strict=True):
        pools.append([wanted[i] - moved])
        while len(pools) > 1 and _mean(pools[-2]) > _mean(pools[-1]):
            last = pools.pop()
            pools[-1].extend(last)
    level = [_mean(pool) for pool in pools for _ in pool]
    if order:
        low, high = low + heights[order[0]] / 2, high - heights[order[-1]] / 2 - shift
    placed = [max(min(y, high), low) + moved for y, moved in zip(level, shifts, strict=True)]
    return [y for _, y in sorted(zip(order, placed, strict=True))]


def save_figure(figure: Figure, stem: Path) -> list[Path]:
    """stem.png (white, in the figure's own resolution) and stem.svg (transparent)."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    files = [stem.with_name(stem.name + ending) for ending in (".png", ".svg")]
    buffer = io.BytesIO()
    figure.savefig(
        buffer, format="png", pil_kwargs={"compress_level": 2}
    )  # a third of the time went into the last bytes
    write_bytes(files[0], buffer.getvalue())
    write_bytes(files[1], _svg(figure).encode())
    return files


def _svg(figure: Figure) -> str:
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with matplotlib.rc_context(FIXED):
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    return buffer.getvalue()


def draw_lines(axes: Axes, chart: Chart, axis: Axis) -> None:
    """Lines, bands and levels, and both axes with their ticks."""
    _arrange(axes, chart, axis)
    for colour, level in dict.fromkeys(
        (line.look.colour, line.level) for line in chart.lines if line.level is not None
    ):
        axes.axhline(level, color=colour, lw=0.7, alpha=0.7, zorder=1.5)
    for line in chart.lines:
        colour, x = line.look.colour, line.x[axis.key]
        style: dict[str, Any] = (
            dict(lw=2.2, mfc=colour) if line.solid else dict(lw=1.6, ls=DASHED[line.look.dash], mfc=PAPER)
        )
        # Where lines have no markers of their own, a few tell apart those that share a colour.
        marker = MARKS[line.look.marker] if chart.marked or line.look.marker != MARKERS[0] else ""
        style["markevery"] = 1 if chart.marked else max(1, len(x) // 6)
        axes.plot(
            x, [y.mean for y in line.y], color=colour, marker=marker, ms=5, mew=1.4, zorder=3, clip_on=False, **style
        )
        if any(y.count > 1 for y in line.y):
            low, high = [y.low for y in line.y], [y.high for y in line.y]
            axes.fill_between(x, low, high, color=colour, alpha=0.16, lw=0, zorder=1)
    if chart.y_scale == "log":
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter(NullFormatter())
        values = [y.mean for line in chart.lines for y in line.y if math.isfinite(y.mean)]
        axes.set_ylim(0.8 * max(FLOOR, min(values, default=FLOOR)), 1.3 * max(values, default=1.0))
    else:
        _percent_axis(axes, chart.lines)


def _percent_axis(axes: Axes, lines: Sequence[Line]) -> None:
    values = [
        v for line in lines for y in line.y for v in (y.low, y.high, line.level) if v is not None and math.isfinite(v)
    ]
    low, high = min(values, default=0.0), max(values, default=100.0)
    step = 20 if high - low > 40 else 10 if high - low > 15 else 5 if high - low > 5 else 1
    half = max(step // 2, 1)
    bottom = 0 if low < 25 else half * math.floor(low / half)  # near zero, show all of it
    top = max(min(step * math.ceil(high / step), 100), bottom + step)
    axes.set_ylim(bottom, top + 0.03 * step)
    axes.set_yticks(range(step * math.ceil(bottom / step), top + 1, step))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} %")


def _arrange(axes: Axes, chart: Chart, axis: Axis) -> None:
    """The horizontal axis."""
    values = [x for line in chart.lines for x in line.x[axis.key] if math.isfinite(x)]
    low, high = min(values, default=0.0), max(values, default=1.0)
    if axis.scale == "log":
        axes.set_xscale("log")
        axes.set_xlim(high * 1.12, low / 1.12) if axis.reverse else axes.set_xlim(low / 1.12, high * 1.12)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 3) if high / low < 1000 else (1,)))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.xaxis.set_major_formatter(lambda value, _: count(value) if axis.unit == "count" else f"{value:g}")
        return
    if axis.scale == "kept":
        axes.set_xscale("function", functions=(kept, lambda y: 100 - 100 * 10 ** (-np.asarray(y, float))))
        first, last = kept(low), kept(high)
        axes.set_xlim(
            100 - 100 * 10 ** -(first - 0.04 * (last - first)), 100 - 100 * 10 ** -(last + 0.01 * (last - first))
        )
    elif axis.at:
        room = 0.04 * (high - low) or 5.0
        axes.set_xlim(low - room, high + room / 4)
    inches = axes.get_position().width * axes.figure.get_figwidth()  # type: ignore[union-attr]
    if axis.at:
        places = axes.transData.transform([(x, 0) for x in axis.at])[:, 0] - axes.bbox.x0
        axes.set_xticks(labelled(axis.at, [inches * float(place) / axes.bbox.width for place in places], ROOM))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(max(2, min(8, int(inches / 0.6))), integer=True))
    if axis.unit == "%":
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.3g} %")


def kept(x: Any) -> Any:
    """The place of x percent removed on an axis of what is left; all removed is as far as 99.99 %."""
    return -np.log10(np.maximum(1 - np.asarray(x, float) / 100, 1e-4))


def labelled(values: Sequence[float], places: Sequence[float], room: float) -> list[float]:
    """The values whose labels fit, given where they are: the first and the last first, then from the last on."""
    found = [0] if len(values) > 1 and abs(places[-1] - places[0]) >= room else []
    found += [len(values) - 1]
    for i in range(len(values) - 2, 0, -1):
        if all(abs(places[i] - places[j]) >= room for j in found):
            found.append(i)
    return [values[i] for i in sorted(found)]


def count(value: float) -> str:
    """In three digits: 28 k, 1.24 M."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {letter}"
    return f"{value:.3g}"


def plain_frame(axes: Axes) -> None:
    """A line below, faint lines across, and nothing else around what is drawn."""
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(MUTED)
    axes.grid(axis="y", color=GRID, lw=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(axis="both", which="both", labelsize=SMALL, labelcolor=MUTED, color=MUTED, length=0, pad=5)
    axes.tick_params(axis="x", which="major", length=3.5)


def _dress(axes: Axes, x_label: str, y_label: str) -> None:
    axes.patch.set_visible(False)
    plain_frame(axes)
    axes.set_xlabel(x_label, size=NORMAL, color=INK, labelpad=6, parse_math=False)
    axes.annotate(
        y_label, (0, 1), xytext=(-33, 10), xycoords="axes fraction", textcoords="offset points", size=NORMAL, color=INK
    )


def _name_ends(
    figure: Figure,
    axes: Axes,
    axis: Axis,
    lines: Sequence[Line],
    names: Sequence[str],
    sizes: Sequence[tuple[float, float]],
) -> None:
    ends = [(line, name, size, line.last(axis.key)) for line, name, size in zip(lines, names, sizes, strict=True)]
    box = axes.get_window_extent().transformed(figure.dpi_scale_trans.inverted())
    drawn = [
        (line, name, size, axes.transData.transform(end) / figure.dpi)
        for line, name, size, end in ends
        if end is not None
    ]
    wanted = [float(point[1]) for *_, point in drawn]
    centres = apart(wanted, [size[1] for _, _, size, _ in drawn], box.y0 - 0.05, box.y1 + 0.1)
    for (line, name, _, (x, y)), centre in zip(drawn, centres, strict=True):
        colour, weight = TEXT[line.look.colour], "bold" if line.solid else "normal"
        place: dict[str, Any] = dict(transform=figure.dpi_scale_trans, zorder=4)
        figure.text(
            box.x1 + 0.2, centre, name, size=SMALL, color=colour, weight=weight, va="center", parse_math=False, **place
        )
        if abs(centre - y) > 0.04 or box.x1 - x > 0.3:  # too far off to be taken for its line
            figure.add_artist(
                Line2D([x + 0.05, box.x1 + 0.16], [y, centre], color=line.look.colour, lw=0.6, alpha=0.7, **place)
            )


def _legend(figure: Figure, lines: Sequence[Line], across: int) -> None:
    handles = [
        Line2D(
            [],
            [],
            color=line.look.colour,
            marker=MARKS[line.look.marker],
            ms=4.5,
            mfc=line.look.colour if line.solid else PAPER,
        )
        for line in lines
    ]
    for handle, line in zip(handles, lines, strict=True):
        handle.set_linestyle("-" if line.solid else DASHED[line.look.dash])
    place: dict[str, Any] = dict(bbox_to_anchor=(0.01, 0.0), frameon=False, ncols=across, labelcolor=INK)
    # Blank first: a name that begins with "_" would be left out of the legend.
    legend = figure.legend(handles, [" "] * len(lines), fontsize=SMALL, labelspacing=0.35, loc="lower left", **place)
    for text, line in zip(legend.get_texts(), lines, strict=True):
        text.set_parse_math(False)
        text.set_text(line.label)


def _across(sizes: Sequence[tuple[float, float]], width: float) -> int:
    return max(1, int(width / (max(size[0] for size in sizes) + 0.6)))


def _size(figure: Figure, text: str) -> tuple[float, float]:
    """Width and height in inches, as bold label."""
    probe = Text(0, 0, text, size=SMALL, weight="bold", figure=figure, parse_math=False)
    box = probe.get_window_extent(figure.canvas.get_renderer())  # type: ignore[attr-defined]
    return box.width / figure.dpi, (text.count("\n") + 1) * SMALL * 1.35 / 72


def _wrapped(text: str, size: float, width: float) -> str:
    """In as few lines as fit, and these of about equal length: no word is left alone."""
    letters = max(int((width - 0.1) * 72 / (size * 0.59)), 8)  # an average letter's width in units of the font's height
    lines = textwrap.wrap(text, letters)
    while letters > 8 and len(closer := textwrap.wrap(text, letters - 1)) == len(lines) > 1:
        lines, letters = closer, letters - 1
    return "\n".join(lines)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
