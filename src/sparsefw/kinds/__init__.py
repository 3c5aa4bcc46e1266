"""Kinds: filters, neurons, heads, rank, weights, N:M. One record each, which everybody else asks."""

from sparsefw.kinds.kind import DEFAULT_GAUGE, GAUGES, Kind, region_maker
from sparsefw.kinds.known import (
    FILTERS,
    HEADS,
    KINDS,
    NEURONS,
    PATTERN,
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
    "in_order",
    "kind_of",
    "kinds_in_words",
    "region_maker",
]
