"""Colours, markers and dashes: one look for every method, the same in all figures, told apart by any eyes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

INK, MUTED, GRID, PAPER = "#1f2328", "#656d76", "#e3e6ea", "#ffffff"
VERMILLION = "#d55e00"
# Okabe and Ito's colours, but yellow, which vanishes on white; their black is the ink of the page.
COLOURS = ("#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", INK, VERMILLION)
# The same hues, dark enough to read as text on white.
TEXT = {
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
    colour: str
    marker: str
    dash: str


def looks(methods: Iterable[str]) -> dict[str, Look]:
    """A look for every method: SGD in warm red, SparseFW first among the others, in blue; no two are equal up to thirty."""
    others = 0
    found = {}
    for method in sorted(dict.fromkeys(methods), key=lambda method: not method.startswith("SparseFW")):
        if method == "SGD":
            found[method] = Look(VERMILLION, MARKERS[0], DASHES[0])
            continue
        colours = COLOURS[:-1]
        again = others // len(colours) % len(MARKERS)
        found[method] = Look(colours[others % len(colours)], MARKERS[again], DASHES[again])
        others += 1
    return found
