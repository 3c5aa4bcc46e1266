"""Colours, markers and dashes: one look for every method, the same in all figures, told apart by any eyes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

INK = "#1f2328"
MUTED = "#656d76"
GRID = "#e3e6ea"
PAPER = "#ffffff"
VERMILLION = "#d55e00"
# Okabe and Ito's colours, but yellow, which vanishes on white; their black is the ink of the page.
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
MARKERS = ("circle", "square", "diamond", "triangle-up", "triangle-down")  # when the colours are used up
DASHES = ("dash", "dot", "dashdot", "longdash", "longdashdot")  # of what is not solid, in the same order


class Look(NamedTuple):
    """Say how the lines of one method are drawn."""

    colour: str
    marker: str
    dash: str


def looks_of(methods: Iterable[str]) -> dict[str, Look]:
    """Give every method its look: SGD in warm red, SparseFW first among the others, in blue; up to thirty all differ."""
    colours = LINE_COLOURS[:-1]
    others = 0
    found = {}
    for method in sorted(dict.fromkeys(methods), key=lambda method: not method.startswith("SparseFW")):
        if method == "SGD":
            found[method] = Look(VERMILLION, MARKERS[0], DASHES[0])
            continue
        again = others // len(colours) % len(MARKERS)
        found[method] = Look(colours[others % len(colours)], MARKERS[again], DASHES[again])
        others += 1
    return found
