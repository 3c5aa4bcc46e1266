"""Colours, markers and dashes: one line style per method, the same in all figures, and clear to colour-blind readers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

INK = "#1f2328"
MUTED = "#656d76"
GRID = "#e3e6ea"
PAPER = "#ffffff"
VERMILLION = "#d55e00"
# The colours of Okabe and Ito without yellow, which is too pale on white; their black is replaced by INK.
LINE_COLOURS = ("#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", INK, VERMILLION)
# The same hues, dark enough to read as text on white.
TEXT_COLOURS = {
    "#0072b2": "#00639b",
    "#009e73": "#00785a",
    "#cc79a7": "#a34f7d",
    "#e69f00": "#946600",
    "#56b4e9": "#23769f",
    INK: INK,
    VERMILLION: "#b34f00",
}
# When all colours are used, they are used again with the next marker and the next dash pattern.
MARKERS = ("circle", "square", "diamond", "triangle-up", "triangle-down")
DASHES = ("dash", "dot", "dashdot", "longdash", "longdashdot")


BASELINE = "sgd"  # the registered name of the method that all others are compared with
SPARSEFW = "sparsefw"


class LineStyle(NamedTuple):
    """The style of a method's lines; dash: of those that are not solid."""

    colour: str
    marker: str
    dash: str


def line_styles(methods: Mapping[str, str]) -> dict[str, LineStyle]:
    """Return a style for every label: SGD is vermillion, and SparseFW has the first of the other colours, blue.

    The styles of up to thirty labels besides SGD all differ. Of several labels of SGD, only the first is vermillion.

    Args:
        methods: label -> the registered name of its method, such as "sgd"
    """
    baseline = next((label for label, method in methods.items() if method == BASELINE), None)
    colours = LINE_COLOURS[:-1]
    styles: dict[str, LineStyle] = {}
    others = 0
    for label in sorted(methods, key=lambda label: methods[label] != SPARSEFW):
        if label == baseline:
            styles[label] = LineStyle(VERMILLION, MARKERS[0], DASHES[0])
            continue
        cycle = others // len(colours) % len(MARKERS)
        styles[label] = LineStyle(colours[others % len(colours)], MARKERS[cycle], DASHES[cycle])
        others += 1
    return styles
