"""Runs as a report sees them: what their folders record, and what they are called in tables and figures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sparsefw.runfolder import RunKind, RunRecord, RunStatus
from sparsefw.runfolder.parse import finite
from sparsefw.runfolder.schema import ConstraintFigures, CurveRecord, EpochRecord, Figures


class ReportError(ValueError):
    """A report that cannot be made, and why: one line."""


@dataclass(frozen=True)
class Damaged:
    """A run folder that cannot be read."""

    folder: Path
    reason: str


@dataclass(frozen=True)
class Epoch:
    """The metric after an epoch, and the state of the constrained weights; None where it was not measured.

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
class Run:
    """A run and its names.

    method    the method in words, equal for runs that differ in their seed only
    label     the method, with the seed if there are several
    epochs    the metric after every epoch
    """

    record: RunRecord
    method: str
    label: str
    epochs: tuple[Epoch, ...]

    @property
    def folder(self) -> Path:
        return self.record.folder

    @property
    def method_name(self) -> str:
        """The registered name of the method, such as "sgd"."""
        return self.record.config.method

    @property
    def name(self) -> str:
        """The name of the configuration."""
        return self.record.facts.name

    @property
    def seed(self) -> int:
        return self.record.facts.seed

    @property
    def metric(self) -> str:
        return self.record.facts.metric

    @property
    def task(self) -> str:
        """The network and the data: runs of one task can be compared."""
        return self.record.config.task

    @property
    def finished(self) -> bool:
        return self.record.status is RunStatus.FINISHED

    @property
    def retrained(self) -> bool:
        """Whether the network was pruned and trained again."""
        return self.record.facts.kind is RunKind.RETRAINED

    @property
    def curves(self) -> tuple[CurveRecord, ...]:
        return self.record.curves

    @property
    def problems(self) -> tuple[str, ...]:
        """What is missing or damaged in the run folder."""
        return self.record.problems

    @property
    def planned_epochs(self) -> int:
        """The planned length of the training; the epochs so far where it is not recorded."""
        planned = self.record.config.epochs
        return len(self.epochs) if planned is None else planned

    def curve(self, kind: str, form: str, split: str = "test") -> CurveRecord | None:
        """Return the curve of this kind, form and split; None where there is none."""
        wanted = (kind, form, split)
        return next((curve for curve in self.curves if (curve.kind, curve.form, curve.split) == wanted), None)

    def has_curves(self, split: str) -> bool:
        return any(curve.split == split for curve in self.curves)

    def measured(self, split: str) -> float | None:
        """Return the final metric on "test" or "validation"; None where it was not measured."""
        result = self.record.result
        if result is None:
            return None
        return _figure(result.test if split == "test" else result.validation, self.metric)


def run_of(record: RunRecord) -> Run:
    """Return a run under the name that its folder records."""
    label = record.facts.label
    epochs = tuple(_epoch(epoch, record.facts.metric) for epoch in record.epochs)
    return Run(record, label, label, epochs)


def _epoch(record: EpochRecord, metric: str) -> Epoch:
    constraint = record.figures.constraint or ConstraintFigures()
    return Epoch(
        number=record.epoch,
        train=_figure(record.figures.train, metric),
        validation=_figure(record.figures.validation, metric),
        renewed=_scaled(constraint.renewed, 1.0),
        decayed=_scaled(constraint.decayed, 100.0),
        compressible=_scaled(constraint.compressible, 100.0),
    )


def _figure(figures: Figures | None, metric: str) -> float | None:
    return None if figures is None else _scaled(figures.get(metric), 1.0)


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else factor * finite(value)
