"""Units of targets: 30k parameters, 100 kB, 2 ms, 30 % of the dense model; a drop of 1 point, or of 1 % of the metric."""

from __future__ import annotations

import math
import re

from sparsefw.text import did_you_mean

PERCENT = "%"
POINT = "pt"
_COUNTS = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}
_BYTES = {"B": 1.0, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}
_MILLISECONDS = {"us": 1e-3, "ms": 1.0, "s": 1e3}
# The word in a target -> its units, each with how many parameters, MACs, bytes or milliseconds it has.
ABSOLUTE = {"params": _COUNTS, "macs": _COUNTS, "bytes": _BYTES, "latency": _MILLISECONDS}
EXAMPLES = {
    "params": "params=30k",
    "macs": "macs=1M",
    "bytes": "bytes=100kB",
    "latency": "latency=2ms",
    "drop": "drop=1pt",
}
_NUMBER = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)\s*(\D*?)\s*", flags=re.IGNORECASE)


def units_of(metric: str) -> tuple[str, ...]:
    """Return the units that a value of this metric may have; without one it is a fraction, or in the metric's own units.

    >>> units_of("latency"), units_of("drop")
    (('%', 'us', 'ms', 's'), ('%', 'pt'))
    """
    return (PERCENT, *ABSOLUTE.get(metric, (POINT,)))


def parse_quantity(metric: str, text: str) -> tuple[float, str]:
    """Return the number and the unit in a text; ValueError, which names both, if it has none, or one of another metric.

    >>> parse_quantity("params", "30k"), parse_quantity("bytes", "1.5 MiB"), parse_quantity("macs", "0.3")
    ((30.0, 'k'), (1.5, 'MiB'), (0.3, ''))
    """
    found = _NUMBER.fullmatch(text)
    if found is None:
        try:
            return float(text), ""  # NaN and inf, which are refused by their value
        except ValueError:
            raise ValueError(f"{text!r} is not a number; such as {EXAMPLES[metric]}") from None
    number, unit = float(found[1]), found[2]
    units = units_of(metric)
    if unit and unit not in units:
        raise ValueError(f"{unit!r} is not a unit of {metric}{did_you_mean(unit, units)}; there are {', '.join(units)}")
    return number, unit


def in_unit(metric: str, amount: float, unit: str) -> str:
    """Return an amount in a unit, to four digits, rounded up: a target of what is returned allows the amount.

    >>> in_unit("params", 12_345_678, "M")
    '12.35M'
    """
    value = amount / ABSOLUTE[metric][unit]
    digits = 3 - math.floor(math.log10(value)) if value else 0
    return f"{math.ceil(round(value * 10**digits, 6)) / 10**digits:.10g}{unit}"
