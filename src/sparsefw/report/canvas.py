"""Line charts with their names at the line ends, drawn without pyplot: nothing global is read or left changed."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

from sparsefw.durable import write_bytes
from sparsefw.report.axes import DASHED, MARKS, draw_lines
from sparsefw.report.charts import Axis, Chart, Line
from sparsefw.report.looks import GRID, INK, MUTED, PAPER, TEXT

SMALL, NORMAL, LARGE = 8.5, 9.5, 13.0  # points
DPI = 160
FIXED: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "sparsefw",
    "text.usetex": False,
}  # text stays text; equal input, equal file


class Heading(NamedTuple):
    """What stands above the charts of a figure, wrapped to its width."""

    title: str
    subtitle: str

    @classmethod
    def of(cls, title: str, subtitle: str, width: float) -> Heading:
        return cls(wrapped(title, LARGE, width), wrapped(subtitle, SMALL, width))

    @property
    def height(self) -> float:
        """In inches, with the room for what the first vertical axis is called."""
        lines = 0.24 * self._title_lines + 0.12 * bool(self.title)
        return 0.45 + lines + 0.18 * (self.subtitle.count("\n") + 1) * bool(self.subtitle)

    @property
    def _title_lines(self) -> int:
        return (self.title.count("\n") + 1) * bool(self.title)

    def write(self, figure: Figure) -> None:
        width, height = figure.get_size_inches()
        left, under = 0.08 / width, 0.16 + 0.24 * self._title_lines
        place: dict[str, Any] = dict(va="top", parse_math=False)
        figure.text(left, 1 - 0.1 / height, self.title, size=LARGE, weight="bold", color=INK, **place)
        figure.text(left, 1 - under / height, self.subtitle, size=SMALL, color=MUTED, linespacing=1.3, **place)


def draw(chart: Chart, key: str | None = None, width: float = 8.0) -> Figure:
    """The chart over the axis of that key, by default its first. All lengths are inches, so that text is never squeezed."""
    axis = next(axis for axis in chart.axes if key in (None, axis.key))
    lines, height = chart.lines, 2.0 + 0.3 * width
    heading = Heading.of(chart.title, chart.subtitle, width)
    top = heading.height
    figure = Figure(figsize=(width, height + top), dpi=DPI)
    FigureCanvasAgg(figure)
    named = [line for line in lines if line.label]
    names = [wrapped(line.label, SMALL, 0.36 * width) for line in named]
    few = len(named) <= 16  # of more, the longest name is enough to know how many stand in a row
    sizes = [text_size(figure, name) for name in (names if few else [max(names, key=len)])]
    beside = few and sum(size[1] for size in sizes) <= height - 0.6
    right = max((size[0] for size in sizes), default=0.0) + 0.32 if beside and named else 0.15
    below = 0.0 if beside else 0.19 * math.ceil(len(named) / _across(sizes, width))
    figure.set_figheight(height + top + below)
    total = height + top + below
    box = (0.55 / width, (0.5 + below) / total, 1 - (0.55 + right) / width, 1 - (0.5 + below + top) / total)
    axes = figure.add_axes(box)
    draw_lines(axes, chart, axis)
    dress(axes, axis.label, chart.y_label)
    if beside:
        name_ends(figure, axes, axis, named, names, sizes)
    else:
        _legend(figure, named, _across(sizes, width))
    heading.write(figure)
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


def plain_frame(axes: Axes) -> None:
    """A line below, faint lines across, and nothing else around what is drawn."""
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(MUTED)
    axes.grid(axis="y", color=GRID, lw=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(axis="both", which="both", labelsize=SMALL, labelcolor=MUTED, color=MUTED, length=0, pad=5)
    axes.tick_params(axis="x", which="major", length=3.5)


def dress(axes: Axes, x_label: str, y_label: str) -> None:
    axes.patch.set_visible(False)
    plain_frame(axes)
    axes.set_xlabel(x_label, size=NORMAL, color=INK, labelpad=6, parse_math=False)
    axes.annotate(
        y_label, (0, 1), xytext=(-33, 10), xycoords="axes fraction", textcoords="offset points", size=NORMAL, color=INK
    )


def name_ends(
    figure: Figure,
    axes: Axes,
    axis: Axis,
    lines: Sequence[Line],
    names: Sequence[str],
    sizes: Sequence[tuple[float, float]],
) -> None:
    """Beside the axes, as close to the ends of the lines as they fit."""
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


def text_size(figure: Figure, text: str) -> tuple[float, float]:
    """Width and height in inches, as bold label."""
    probe = Text(0, 0, text, size=SMALL, weight="bold", figure=figure, parse_math=False)
    box = probe.get_window_extent(figure.canvas.get_renderer())  # type: ignore[attr-defined]
    return box.width / figure.dpi, (text.count("\n") + 1) * SMALL * 1.35 / 72


def wrapped(text: str, size: float, width: float) -> str:
    """In as few lines as fit, and these of about equal length: no word is left alone."""
    letters = max(int((width - 0.1) * 72 / (size * 0.59)), 8)  # an average letter's width in units of the font's height
    lines = textwrap.wrap(text, letters)
    while letters > 8 and len(closer := textwrap.wrap(text, letters - 1)) == len(lines) > 1:
        lines, letters = closer, letters - 1
    return "\n".join(lines)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
