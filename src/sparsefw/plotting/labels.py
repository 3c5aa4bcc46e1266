"""The text of figures: headings, names of axes, and the names of lines at their ends."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

from sparsefw.plotting.charts import Axis, Line
from sparsefw.plotting.figure_io import without_glyph_warnings
from sparsefw.plotting.palette import GRID, INK, MUTED, TEXT_COLOURS

# Sizes of text, in points.
SMALL_TEXT = 8.5
NORMAL_TEXT = 9.5
LARGE_TEXT = 13.0


class Heading(NamedTuple):
    """The title and the subtitle above the charts of a figure, wrapped to its width."""

    title: str
    subtitle: str

    @classmethod
    def of_width(cls, title: str, subtitle: str, width: float) -> Heading:
        """Wrap both texts to a width in inches."""
        return cls(wrap_evenly(title, LARGE_TEXT, width), wrap_evenly(subtitle, SMALL_TEXT, width))

    @property
    def height(self) -> float:
        """Return the height in inches, including room for the name of the first vertical axis."""
        title = 0.24 * self._title_lines + 0.12 * bool(self.title)
        return 0.45 + title + 0.18 * (self.subtitle.count("\n") + 1) * bool(self.subtitle)

    @property
    def _title_lines(self) -> int:
        return (self.title.count("\n") + 1) * bool(self.title)

    def write(self, figure: Figure) -> None:
        """Write both texts at the top of a figure."""
        width, height = figure.get_size_inches()
        left = 0.08 / width
        below_title = 0.16 + 0.24 * self._title_lines
        layout: dict[str, Any] = dict(va="top", parse_math=False)
        figure.text(left, 1 - 0.1 / height, self.title, size=LARGE_TEXT, weight="bold", color=INK, **layout)
        figure.text(
            left, 1 - below_title / height, self.subtitle, size=SMALL_TEXT, color=MUTED, linespacing=1.3, **layout
        )


def plain_frame(axes: Axes) -> None:
    """Draw a line at the bottom and a faint horizontal grid, and no other frame."""
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(MUTED)
    axes.grid(axis="y", color=GRID, lw=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(axis="both", which="both", labelsize=SMALL_TEXT, labelcolor=MUTED, color=MUTED, length=0, pad=5)
    axes.tick_params(axis="x", which="major", length=3.5)


def label_axes(axes: Axes, x_label: str, y_label: str) -> None:
    """Frame the axes, and write the name of the horizontal axis below them and that of the vertical axis above."""
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
    """Write the names of lines to the right of the axes, as close to the ends of the lines as they fit.

    Args:
        names: wrapped, one per line
        sizes: width and height of each name, in inches
    """
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
        written["color"] = TEXT_COLOURS[line.style.colour]
        written["weight"] = "bold" if line.solid else "normal"
        figure.text(box.x1 + 0.2, centre, name, **written, **place)
        if abs(centre - y) > 0.04 or box.x1 - x > 0.3:  # without a line between them, the name would look unrelated
            figure.add_artist(
                Line2D([x + 0.05, box.x1 + 0.16], [y, centre], color=line.style.colour, lw=0.6, alpha=0.7, **place)
            )


def place_apart(wanted: Sequence[float], heights: Sequence[float], low: float, high: float) -> list[float]:
    """Return the centres of labels that neither overlap nor leave [low, high], closest to the wanted ones in least squares.

    >>> place_apart([5.0, 5.0, 5.0], heights=[2.0, 2.0, 2.0], low=0.0, high=10.0)
    [3.0, 5.0, 7.0]
    """
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


def draw_legend(figure: Figure, handles: Sequence[Line2D], names: Sequence[str], **layout: Any) -> None:
    """Draw a legend without a frame."""
    # Blank first: matplotlib leaves a name that begins with "_" out of the legend.
    blank = [" "] * len(names)
    legend = figure.legend(handles, blank, fontsize=SMALL_TEXT, labelcolor=INK, frameon=False, **layout)
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set_parse_math(False)
        text.set_text(name)


def text_size(figure: Figure, text: str) -> tuple[float, float]:
    """Return the width and height, in inches, of a small bold text."""
    probe = Text(0, 0, text, size=SMALL_TEXT, weight="bold", figure=figure, parse_math=False)
    with without_glyph_warnings():
        box = probe.get_window_extent(figure.canvas.get_renderer())  # type: ignore[attr-defined]
    return box.width / figure.dpi, (text.count("\n") + 1) * SMALL_TEXT * 1.35 / 72


def wrap_evenly(text: str, size: float, width: float) -> str:
    """Wrap a text to as few lines as the width in inches allows, all of about the same length.

    size: of the font, in points
    """
    letters = max(int((width - 0.1) * 72 / (size * 0.59)), 8)  # 0.59: width of an average letter over the font size
    lines = textwrap.wrap(text, letters)
    while letters > 8 and len(closer := textwrap.wrap(text, letters - 1)) == len(lines) > 1:
        lines = closer
        letters -= 1
    return "\n".join(lines)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
