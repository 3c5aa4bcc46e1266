"""What run folders tell, as records: runs, their epochs, curves and spectra."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any


class ReportError(ValueError):
    """What cannot be reported, and why: one line."""


@dataclass(frozen=True)
class Size:
    """How large a network is; None where that was not measured. Masked networks have no size of their own."""

    parameters: float | None = None
    macs: float | None = None
    bytes: float | None = None
    milliseconds: float | None = None


SIZES = tuple(field.name for field in fields(Size))


@dataclass(frozen=True)
class How:
    """What else the figures of a curve depend on; calibration: images without labels, None where it is not told."""

    score: str = "l1"
    allocation: str | None = None
    calibration: int | None = None


@dataclass(frozen=True)
class Point:
    """One size. plain is nan where so much is gone that nothing can be computed."""

    ratio: float
    plain: float
    refit: float | None
    size: Size


@dataclass(frozen=True)
class RunCurve:
    """A curve file: the metric, in percent, of the dense network and at every ratio removed."""

    kind: str
    form: str
    metric: str
    split: str
    how: How
    dense: float
    size: Size
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Epoch:
    """The metric after an epoch, and what had become of the constrained weights; None where it was not measured.

    train, validation       the metric, in percent
    renewed                 how often the weights had been renewed
    decayed, compressible   shares, in percent
    """

    number: int
    train: float | None
    validation: float | None
    renewed: float | None = None
    decayed: float | None = None
    compressible: float | None = None


@dataclass(frozen=True)
class Spectrum:
    """Magnitudes of a layer, largest first: some of `count`, at these indices."""

    count: int
    index: tuple[int, ...]
    value: tuple[float, ...]


@dataclass(frozen=True)
class Damaged:
    """A run folder that cannot be read."""

    folder: Path
    reason: str


@dataclass(frozen=True)
class Run:
    """What a run folder tells.

    method is shared by the runs that differ in their seed only; label is the method, with the seed if there are several.
    spectra: layer -> what of it ("filters", "singular values") -> its magnitudes.
    """

    folder: Path
    method: str
    label: str
    config: Mapping[str, Any]
    metric: str
    epochs: tuple[Epoch, ...]
    result: Mapping[str, Any] | None
    environment: Mapping[str, Any]
    curves: tuple[RunCurve, ...]
    spectra: Mapping[str, Mapping[str, Spectrum]]
    notes: tuple[str, ...]

    @property
    def finished(self) -> bool:
        return self.result is not None

    @property
    def name(self) -> str:
        return str(self.config.get("name", self.folder.name))

    @property
    def seed(self) -> int:
        seed = self.config.get("seed", 0)
        return seed if isinstance(seed, int) else 0

    @property
    def task(self) -> str:
        """What was learned: runs of one task can be compared."""
        model, data = (self.config.get(key) for key in ("model", "data"))
        return f"{_named(model)} on {_named(data)}"

    def curve(self, kind: str, form: str, split: str = "test") -> RunCurve | None:
        wanted = (kind, form, split)
        return next((one for one in self.curves if (one.kind, one.form, one.split) == wanted), None)

    def has_curves(self, split: str) -> bool:
        return any(curve.split == split for curve in self.curves)

    def measured(self, split: str) -> float | None:
        """The final metric on "test" or "validation"."""
        values = (self.result or {}).get(split)
        return number(values.get(self.metric)) if isinstance(values, Mapping) else None

    def fact(self, key: str) -> float | None:
        """A number of result.json, such as seconds."""
        return number((self.result or {}).get(key))


def number(value: Any) -> float | None:
    return finite(float(value)) if isinstance(value, int | float) and not isinstance(value, bool) else None


def finite(value: float) -> float:
    """What is not a finite number is nan, and is shown as such."""
    return value if math.isfinite(value) else math.nan


def _named(part: Any) -> str:
    return str(part.get("name", "?")) if isinstance(part, Mapping) else str(part or "?")
