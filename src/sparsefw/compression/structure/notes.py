"""Notes: which labels every side of every layer has, of all passes of a network."""

from __future__ import annotations

from sparsefw.compression.reasons import Reason
from sparsefw.compression.structure.channels import Side
from sparsefw.compression.structure.labels import Array, Labels


class Notes:
    """The label of each position of each side of a layer, parameter or buffer.

    of          (name, side) -> the labels
    called      the layers that are called, by themselves or by code that multiplies with their weights
    obstacles   layer -> why its channels cannot be removed
    """

    def __init__(self, labels: Labels) -> None:
        self.labels = labels
        self.of: dict[tuple[str, Side], Array] = {}
        self.called: set[str] = set()
        self.obstacles: dict[str, Reason] = {}

    def add(self, name: str, side: Side, labels: Array) -> None:
        """Note the labels of a side; a layer that is used twice has the same channels both times."""
        if name in self.obstacles:
            self.labels.fix(labels, self.obstacles[name])
        if (name, side) in self.of:
            self.labels.unite(self.of[name, side], labels)
        self.of[name, side] = labels
