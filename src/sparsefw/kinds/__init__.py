"""Kinds: filters, neurons, heads, rank, weights and N:M, one record each, which all other packages read."""

from sparsefw.kind_words import PATTERN, is_pattern
from sparsefw.kinds.kind import DEFAULT_GAUGE, GAUGES, Kind, ball_maker
from sparsefw.kinds.known import (
    FILTERS,
    HEADS,
    KINDS,
    NEURONS,
    RANK,
    WEIGHTS,
    Pattern,
    in_order,
    kind_of,
    kinds_in_words,
)

__all__ = [
    "DEFAULT_GAUGE",
    "FILTERS",
    "GAUGES",
    "HEADS",
    "KINDS",
    "NEURONS",
    "PATTERN",
    "RANK",
    "WEIGHTS",
    "Kind",
    "Pattern",
    "ball_maker",
    "in_order",
    "is_pattern",
    "kind_of",
    "kinds_in_words",
]
