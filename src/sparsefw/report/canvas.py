"""Line charts with their names at the line ends, drawn without pyplot: nothing global is read or left changed."""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

from sparsefw.durable import write_bytes
from sparsefw.report.series import Spread

INK, MUTED, GRID, PAPER = "#1f2328", "#656d76", "#e3e6ea", "#ffffff"
VERMILLION = "#d55e00"
# Okabe and Ito's colours that can be told apart with any eyes (yellow is left out: it vanishes on white).
COLOURS = ("#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", VERMILLION)
# The same hues, dark enough to read as text on white.
TEXT = {
    "#0072b2": "#00639b",
    "#009e73": "#00785a",
    "#cc79a7": "#a34f7d",
    "#e69f00": "#946600",
    "#56b4e9": "#23769f",
    VERMILLION: "#b34f00",
}
MARKERS = "osD^v"  # when the colours are used up
SMALL, NORMAL, LARGE = 8.5, 9.5, 13.0  # points
DPI = 200
FIXED: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "sparsefw",
    "text.usetex": False,
}  # text stays text; equal input, equal file


@dataclass(frozen=True)
class Line:
    """One curve: its values over x, nan where there is a gap; level is where it would be if nothing were lost.

    One without label shares its colour with another that has one.
    """

    label: str
    colour: str
    marker: str
    solid: bool
    x: Sequence[float]
    y: Sequence[Spread]
    level: float | None = None

    def last(self) -> tuple[float, float] | None:
        """The last point that can be drawn."""
        return next(
            ((x, y.mean) for x, y in zip(self.x[::-1], self.y[::-1], strict=True) if math.isfinite(y.mean)), None
        )


def looks(methods: Iterable[str]) -> dict[str, tuple[str, str]]:
    """A colour and a marker for every method: SGD in warm red, the others beginning with blue."""
    others = 0
    found = {}
    for method in dict.fromkeys(methods):
        if method == "SGD":
            found[method] = (VERMILLION, MARKERS[0])
            continue
        colours = COLOURS[:-1]
        found[method] = (colours[others % len(colours)], MARKERS[others // len(colours) % len(MARKERS)])
        others += 1
    return found


def chart(
    lines: Sequence[Line],
    *,
    x_label: str,
    y_label: str,
    title: str = "",
    subtitle: str = "",
    width: float = 8.0,
    arrange: Callable[[Axes], Any],
) -> Figure:
    """Values in percent over x. `arrange` sets up the x axis; all lengths are inches, so that text is never squeezed."""
    height = 2.0 + 0.3 * width
    heads = _wrapped(title, LARGE, width), _wrapped(subtitle, SMALL, width)
    top = 0.45 + (heads[0].count("\n") + 1) * 0.24 * bool(title) + (heads[1].count("\n") + 1) * 0.18 * bool(subtitle)
    top += 0.12 * bool(title)
    figure = Figure(figsize=(width, height + top), dpi=DPI)
    FigureCanvasAgg(figure)
    named = [line for line in lines if line.label]
    names = [_wrapped(line.label, SMALL, 0.36 * width) for line in named]
    sizes = [_size(figure, name) for name in names]
    beside = sum(size[1] for size in sizes) <= height - 0.6 and len(named) <= 16
    right = max((size[0] for size in sizes), default=0.0) + 0.32 if beside and named else 0.15
    below = 0.0 if beside else 0.19 * math.ceil(len(named) / _across(sizes, width))
    figure.set_figheight(height + top + below)
    total = height + top + below
    box = (0.55 / width, (0.5 + below) / total, 1 - (0.55 + right) / width, 1 - (0.5 + below + top) / total)
    axes = figure.add_axes(box)
    _draw(axes, lines)
    arrange(axes)
    _dress(axes, x_label, y_label)
    if beside:
        _name_ends(figure, axes, named, names, sizes)
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
    """stem.png (200 dpi, white) and stem.svg (transparent)."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    files = [stem.with_name(stem.name + ending) for ending in (".png", ".svg")]
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    write_bytes(files[0], buffer.getvalue())
    write_bytes(files[1], _svg(figure).encode())
    return files


def inline_svg(figure: Figure, name: str, alt: str) -> str:
    """For HTML: colours are the page's variables, to follow light and dark; ids begin with `name`, unique in the page."""
    text = _svg(figure)
    text = text[text.index("<svg") :]
    text = re.sub(r"<style.*?</style>", "", text, count=1, flags=re.DOTALL)  # it would apply to the whole page
    text = re.sub(r' (xmlns(:xlink)?|version)="[^"]*"', "", text)
    text = re.sub(r'<svg [^>]*?(viewBox="[^"]*")[^>]*>', f'<svg \\1 role="img" aria-label="{alt}">', text, count=1)
    text = re.sub(r'(\bid="|url\(#|(?<=\s)(?:xlink:)?href="#)', lambda m: m[1].replace("xlink:", "") + f"{name}-", text)
    for colour, variable in _variables().items():
        text = text.replace(colour, f"var(--{variable})")
    return text


def _variables() -> dict[str, str]:
    hues = {colour: f"line-{i}" for i, colour in enumerate(COLOURS)}
    texts = {TEXT[colour]: f"text-{i}" for i, colour in enumerate(COLOURS)}
    return {INK: "ink", MUTED: "muted", GRID: "grid", PAPER: "paper", **hues, **texts}


def _svg(figure: Figure) -> str:
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with matplotlib.rc_context(FIXED):
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    return buffer.getvalue()


def _draw(axes: Axes, lines: Sequence[Line]) -> None:
    for colour, level in dict.fromkeys((line.colour, line.level) for line in lines if line.level is not None):
        axes.axhline(level, color=colour, lw=0.7, alpha=0.7, zorder=1.5)
    for line in lines:
        style: dict[str, Any] = (
            dict(lw=2.2, mfc=line.colour) if line.solid else dict(lw=1.6, ls=(0, (4, 2.2)), mfc=PAPER)
        )
        shape: dict[str, Any] = dict(color=line.colour, marker=line.marker, ms=5, mew=1.4, zorder=3, clip_on=False)
        axes.plot(line.x, [y.mean for y in line.y], **shape, **style)
        if any(y.count > 1 for y in line.y):
            axes.fill_between(
                line.x, [y.low for y in line.y], [y.high for y in line.y], color=line.colour, alpha=0.16, lw=0, zorder=1
            )
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
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} %")
    axes.set_xlabel(x_label, size=NORMAL, color=INK, labelpad=6, parse_math=False)
    axes.annotate(
        y_label, (0, 1), xytext=(-33, 10), xycoords="axes fraction", textcoords="offset points", size=NORMAL, color=INK
    )


def _name_ends(
    figure: Figure, axes: Axes, lines: Sequence[Line], names: Sequence[str], sizes: Sequence[tuple[float, float]]
) -> None:
    ends = [(line, name, size, line.last()) for line, name, size in zip(lines, names, sizes, strict=True)]
    box = axes.get_window_extent().transformed(figure.dpi_scale_trans.inverted())
    drawn = [
        (line, name, size, axes.transData.transform(end) / figure.dpi)
        for line, name, size, end in ends
        if end is not None
    ]
    wanted = [float(point[1]) for *_, point in drawn]
    centres = apart(wanted, [size[1] for _, _, size, _ in drawn], box.y0 - 0.05, box.y1 + 0.1)
    for (line, name, _, (x, y)), centre in zip(drawn, centres, strict=True):
        colour, weight = TEXT[line.colour], "bold" if line.solid else "normal"
        place: dict[str, Any] = dict(transform=figure.dpi_scale_trans, zorder=4)
        figure.text(
            box.x1 + 0.2, centre, name, size=SMALL, color=colour, weight=weight, va="center", parse_math=False, **place
        )
        if abs(centre - y) > 0.04 or box.x1 - x > 0.3:  # too far off to be taken for its line
            figure.add_artist(
                Line2D([x + 0.05, box.x1 + 0.16], [y, centre], color=line.colour, lw=0.6, alpha=0.7, **place)
            )


def _legend(figure: Figure, lines: Sequence[Line], across: int) -> None:
    handles = [
        Line2D([], [], color=line.colour, marker=line.marker, ms=4.5, mfc=line.colour if line.solid else PAPER)
        for line in lines
    ]
    for handle, line in zip(handles, lines, strict=True):
        handle.set_linestyle("-" if line.solid else (0, (3, 1.6)))
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
