"""Sensitivity: how much the output changes when one layer, or one set of channels, is compressed alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparsefw.compression.allocate import Sensitivity
from sparsefw.compression.kinds import Stage
from sparsefw.compression.recovery.calibration import mean_over_ranks
from sparsefw.compression.structure.gaps import relative_gap
from sparsefw.compression.structure.layers import call_on_copy, evaluating

RATIOS = (0.25, 0.5, 0.75, 0.9, 0.99)


def measure_sensitivity(stage: Stage, inputs: Any, ratios: Sequence[float] = RATIOS) -> Sensitivity:
    """Measure the relative change of the output on these inputs for every set of units and every ratio."""
    with evaluating(stage.model):
        expected = call_on_copy(stage.model, inputs)
    dense_counts = stage.counts(0.0)
    damage: dict[str, list[tuple[float, float]]] = {}
    for i, units in enumerate(stage.unit_sets):
        damage[units.name] = []
        for ratio in ratios:
            counts = list(dense_counts)
            counts[i] = units.rounded(units.count - round(ratio * units.count), 1)
            small = stage.cut(counts).model
            with evaluating(small):
                gap = relative_gap(expected, call_on_copy(small, inputs))
            damage[units.name].append((ratio, mean_over_ranks(gap)))
    return Sensitivity(damage)
