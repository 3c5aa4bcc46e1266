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

from sparsefw.atomic_io import write_bytes
from sparsefw.plotting.axes import DASH_PATTERNS, MARKER_SHAPES, draw_lines
from sparsefw.plotting.charts import Axis, Chart, Line
from sparsefw.plotting.palette import GRID, INK, MUTED, PAPER, TEXT_COLOURS

# Sizes of text, in points.
SMALL_TEXT = 8.5
NORMAL_TEXT = 9.5
LARGE_TEXT = 13.0
DPI = 160
# Text stays text; equal input, equal file.
SVG_SETTINGS: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "sparsefw", "text.usetex": False}
MOST_NAMES_BESIDE = 16  # lines; of more, the names are in a legend


class Heading(NamedTuple):
    """Hold what stands above the charts of a figure, wrapped to its width."""

    title: str
    subtitle: str

    @classmethod
    def of_width(cls, title: str, subtitle: str, width: float) -> Heading:
        """Wrap both texts to so many inches."""
        return cls(wrap_evenly(title, LARGE_TEXT, width), wrap_evenly(subtitle, SMALL_TEXT, width))

    @property
    def height(self) -> float:
        """Tell the inches it takes, with the room for what the first vertical axis is called."""
        lines = 0.24 * self._title_lines + 0.12 * bool(self.title)
        return 0.45 + lines + 0.18 * (self.subtitle.count("\n") + 1) * bool(self.subtitle)

    @property
    def _title_lines(self) -> int:
        return (self.title.count("\n") + 1) * bool(self.title)

    def write(self, figure: Figure) -> None:
        """Write both texts at the top of a figure."""
        width, height = figure.get_size_inches()
        left = 0.08 / width
        under = 0.16 + 0.24 * self._title_lines
        place: dict[str, Any] = dict(va="top", parse_math=False)
        figure.text(left, 1 - 0.1 / height, self.title, size=LARGE_TEXT, weight="bold", color=INK, **place)
        figure.text(left, 1 - under / height, self.subtitle, size=SMALL_TEXT, color=MUTED, linespacing=1.3, **place)


def draw_chart(chart: Chart, axis_key: str | None = None, width: float = 8.0) -> Figure:
    """Draw a chart over the axis of that key, by default its first, all lengths in inches, so that text is never squeezed."""
    axis = next(axis for axis in chart.axes if axis_key in (None, axis.key))
    height = 2.0 + 0.3 * width
    heading = Heading.of_width(chart.title, chart.subtitle, width)
    top = heading.height
    figure = Figure(figsize=(width, height + top), dpi=DPI)
    FigureCanvasAgg(figure)
    named = [line for line in chart.lines if line.label]
    names = [wrap_evenly(line.label, SMALL_TEXT, 0.36 * width) for line in named]
    few = len(named) <= MOST_NAMES_BESIDE  # of more, the longest name is enough to know how many stand in a row
    sizes = [text_size(figure, name) for name in (names if few else [max(names, key=len)])]
    beside = few and sum(size[1] for size in sizes) <= height - 0.6
    right = max((size[0] for size in sizes), default=0.0) + 0.32 if beside and named else 0.15
    below = 0.0 if beside else 0.19 * math.ceil(len(named) / _names_per_row(sizes, width))
    total = height + top + below
    figure.set_figheight(total)
    box = (0.55 / width, (0.5 + below) / total, 1 - (0.55 + right) / width, 1 - (0.5 + below + top) / total)
    axes = figure.add_axes(box)
    draw_lines(axes, chart, axis)
    label_axes(axes, axis.label, chart.y_label)
    if beside:
        name_line_ends(figure, axes, axis, named, names, sizes)
    else:
        _draw_legend(figure, named, _names_per_row(sizes, width))
    heading.write(figure)
    return figure


def place_apart(wanted: Sequence[float], heights: Sequence[float], low: float, high: float) -> list[float]:
    """Find the centres closest to the wanted ones, in least squares, of labels that neither overlap nor leave [low, high]."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    shift = 0.0
    shifts = []
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
        low += heights[order[0]] / 2
        high = high - heights[order[-1]] / 2 - shift
    placed = [max(min(y, high), low) + moved for y, moved in zip(level, shifts, strict=True)]
    return [y for _, y in sorted(zip(order, placed, strict=True))]


def save_figure(figure: Figure, stem: Path) -> list[Path]:
    """Write stem.png, white and in the figure's own resolution, and stem.svg, transparent."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    files = [stem.with_name(stem.name + ending) for ending in (".png", ".svg")]
    buffer = io.BytesIO()
    fast = {"compress_level": 2}  # a third of the time went into the last bytes
    figure.savefig(buffer, format="png", pil_kwargs=fast)
    write_bytes(files[0], buffer.getvalue())
    write_bytes(files[1], _as_svg(figure).encode())
    return files


def _as_svg(figure: Figure) -> str:
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with matplotlib.rc_context(SVG_SETTINGS):
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    return buffer.getvalue()


def plain_frame(axes: Axes) -> None:
    """Draw a line below, faint lines across, and nothing else around what is drawn."""
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(MUTED)
    axes.grid(axis="y", color=GRID, lw=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(axis="both", which="both", labelsize=SMALL_TEXT, labelcolor=MUTED, color=MUTED, length=0, pad=5)
    axes.tick_params(axis="x", which="major", length=3.5)


def label_axes(axes: Axes, x_label: str, y_label: str) -> None:
    """Frame the axes, and write the name of the horizontal one below and that of the vertical one above."""
    axes.patch.set_visible(False)
    plain_frame(axes)
    axes.set_xlabel(x_label, size=NORMAL_TEXT, color=INK, labelpad=6, parse_math=False)
    place: dict[str, Any] = dict(xytext=(-33, 10), xycoords="axes fraction", textcoords="offset points")
    axes.annotate(y_label, (0, 1), size=NORMAL_TEXT, color=INK, **place)


def name_line_ends(
    figure: Figure,
    axes: Axes,
    axis: Axis,
    lines: Sequence[Line],
    names: Sequence[str],
    sizes: Sequence[tuple[float, float]],
) -> None:
    """Write names beside the axes, as close to the ends of their lines as they fit."""
    ends = [(line, name, size, line.last_point(axis.key)) for line, name, size in zip(lines, names, sizes, strict=True)]
    box = axes.get_window_extent().transformed(figure.dpi_scale_trans.inverted())
    drawn = [
        (line, name, size, axes.transData.transform(end) / figure.dpi)
        for line, name, size, end in ends
        if end is not None
    ]
    wanted = [float(point[1]) for *_, point in drawn]
    centres = place_apart(wanted, [size[1] for _, _, size, _ in drawn], box.y0 - 0.05, box.y1 + 0.1)
    place: dict[str, Any] = dict(transform=figure.dpi_scale_trans, zorder=4)
    for (line, name, _, (x, y)), centre in zip(drawn, centres, strict=True):
        written: dict[str, Any] = dict(size=SMALL_TEXT, va="center", parse_math=False)
        written["color"] = TEXT_COLOURS[line.look.colour]
        written["weight"] = "bold" if line.solid else "normal"
        figure.text(box.x1 + 0.2, centre, name, **written, **place)
        if abs(centre - y) > 0.04 or box.x1 - x > 0.3:  # too far off to be taken for its line
            figure.add_artist(
                Line2D([x + 0.05, box.x1 + 0.16], [y, centre], color=line.look.colour, lw=0.6, alpha=0.7, **place)
            )


def _draw_legend(figure: Figure, lines: Sequence[Line], names_per_row: int) -> None:
    handles = []
    for line in lines:
        colour = line.look.colour
        inside = colour if line.solid else PAPER
        handle = Line2D([], [], color=colour, marker=MARKER_SHAPES[line.look.marker], ms=4.5, mfc=inside)
        handle.set_linestyle("-" if line.solid else DASH_PATTERNS[line.look.dash])
        handles.append(handle)
    place: dict[str, Any] = dict(bbox_to_anchor=(0.01, 0.0), frameon=False, ncols=names_per_row, labelcolor=INK)
    # Blank first: a name that begins with "_" would be left out of the legend.
    blank = [" "] * len(lines)
    legend = figure.legend(handles, blank, fontsize=SMALL_TEXT, labelspacing=0.35, loc="lower left", **place)
    for text, line in zip(legend.get_texts(), lines, strict=True):
        text.set_parse_math(False)
        text.set_text(line.label)


def _names_per_row(sizes: Sequence[tuple[float, float]], width: float) -> int:
    return max(1, int(width / (max(size[0] for size in sizes) + 0.6)))


def text_size(figure: Figure, text: str) -> tuple[float, float]:
    """Measure width and height, in inches, of a small bold text."""
    probe = Text(0, 0, text, size=SMALL_TEXT, weight="bold", figure=figure, parse_math=False)
    box = probe.get_window_extent(figure.canvas.get_renderer())  # type: ignore[attr-defined]
    return box.width / figure.dpi, (text.count("\n") + 1) * SMALL_TEXT * 1.35 / 72


def wrap_evenly(text: str, size: float, width: float) -> str:
    """Wrap a text to as few lines as fit, of about equal length: no word is left alone."""
    letters = max(int((width - 0.1) * 72 / (size * 0.59)), 8)  # an average letter's width in units of the font's height
    lines = textwrap.wrap(text, letters)
    while letters > 8 and len(closer := textwrap.wrap(text, letters - 1)) == len(lines) > 1:
        lines = closer
        letters -= 1
    return "\n".join(lines)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
