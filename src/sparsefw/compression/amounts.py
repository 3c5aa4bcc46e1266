"""Amounts: how much of which kind to remove, as users write it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

from sparsefw.compression.metric import as_number
from sparsefw.kinds import KINDS, WEIGHTS, Kind, is_pattern, kind_of
from sparsefw.scalars import is_number
from sparsefw.text import did_you_mean

Amounts = Mapping[Kind, float]  # kind -> the fraction to remove


class KindAmounts(TypedDict, total=False):
    """The names of all kinds as keyword arguments, such as filters=0.7, for editors and type checkers."""

    filters: float | None
    neurons: float | None
    heads: float | None
    rank: float | None
    weights: float | str | None


def amounts_of(removed: Mapping[str, Any], other_keywords: Sequence[str]) -> dict[Kind, float]:
    """Return keyword arguments such as filters=0.5 and weights="2:4" as kinds and the fractions to remove.

    Args:
        removed: The keyword arguments.
        other_keywords: The other keywords of the function, one of which may have been mistyped.
    """
    amounts: dict[Kind, float] = {}
    for name, value in removed.items():
        if difflib.get_close_matches(name, other_keywords) and not difflib.get_close_matches(name, KINDS):
            raise TypeError(f"unknown argument {name!r}{did_you_mean(name, other_keywords)}")
        kind = kind_of(name)
        if isinstance(value, str) and kind is WEIGHTS and is_pattern(value):
            kind = kind_of(value)
            value = kind.only_ratio
        if value is not None:
            amounts[kind] = ratio_of(kind.name, value)
    return amounts


def ratio_of(name: str, value: Any) -> float:
    """Return the fraction to remove as a float; ValueError if it is not in [0, 1).

    >>> ratio_of("filters", 0)
    0.0
    """
    if not is_number(value) or not 0 <= value < 1:
        raise ValueError(f"{name}={value!r}: the fraction to remove must be in [0, 1)")
    return float(value)


def ratios_of(at: Any, kind: Kind) -> list[float]:
    """Return several fractions of one kind to remove, checked."""
    numbers = [as_number(ratio) for ratio in at] if isinstance(at, Iterable) else []
    ratios = [number for number in numbers if number is not None and 0 <= number < 1]
    if not ratios or len(ratios) < len(numbers):
        raise ValueError(f"at={at!r}: ratios to remove must be in [0, 1), at least one")
    if kind.only_ratio is not None and ratios != [kind.only_ratio]:
        raise ValueError(f"at={at!r}: {kind.name} removes {kind.only_ratio:g} of the weights, no other share")
    return ratios
