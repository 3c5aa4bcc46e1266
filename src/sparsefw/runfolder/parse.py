"""Parse the contents of files into records. A missing or malformed required field raises KeyError, TypeError or ValueError."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from sparsefw.kinds import RANK, kind_of
from sparsefw.recovery_words import AUTO, PLAIN, REFIT
from sparsefw.runfolder.schema import (
    SIZES,
    ConstraintFigures,
    CurveRecord,
    CurveSettings,
    DataChange,
    DataRecord,
    EnvironmentRecord,
    EpochFigures,
    EpochRecord,
    Figures,
    ModelRecord,
    ObservedFigures,
    RecordedPoint,
    ResultRecord,
    RetrainingPhase,
    RetrainingRequest,
    RunFacts,
    RunKind,
    Size,
    SpectraRecord,
    Spectrum,
    SweepJob,
)
from sparsefw.scalars import is_int, is_number

T = TypeVar("T")
Content = Mapping[str, Any]
FORMER_SPECTRA = {"singular values": RANK.name}  # the key that earlier versions wrote
# Raised by content that does not follow the schema.
MALFORMED = (LookupError, TypeError, ValueError, AttributeError, OverflowError)
_IS_TYPE: dict[str, Callable[[Any], bool]] = {
    "str": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "int": is_int,
    "float": is_number,
}


def number(value: Any) -> float | None:
    """Return a number as a float, and None for anything else."""
    return float(value) if is_number(value) else None


def _text(value: Any) -> str | None:
    """Return a value as text; None stays None."""
    return None if value is None else str(value)


def _drawable(value: Any) -> int | None:
    """Return an integer that charts can show, None for anything that is no integer; OverflowError for a larger one."""
    return int(value) if isinstance(value, int) and math.isfinite(float(value)) else None


def finite(value: float) -> float:
    """Return a finite number unchanged, and nan for any other."""
    return value if math.isfinite(value) else math.nan


def _checked(record: T) -> T:
    """Return a record whose fields have the plain types that it declares; TypeError if one has not."""
    for name, field in record.__dataclass_fields__.items():  # type: ignore[attr-defined]
        value = getattr(record, name)
        if not _IS_TYPE.get(field.type, lambda value: True)(value):
            raise TypeError(f"{name} is {value!r}, which is no {field.type}")
    return record


def parse_facts(content: Content) -> RunFacts:
    phase = content["phase"]
    job = content["job"]
    return _checked(
        RunFacts(
            name=content["name"],
            kind=RunKind(content["kind"]),
            label=content["label"],
            family=content["family"],
            seed=content["seed"],
            metric=content["metric"],
            phase=None if phase is None else _checked(RetrainingPhase(**phase)),
            job=None if job is None else _checked(SweepJob(**job)),
        )
    )


def parse_environment(content: Content) -> EnvironmentRecord:
    return EnvironmentRecord(
        versions=dict(content.get("versions") or {}),
        hardware=dict(content.get("hardware") or {}),
        date=_text(content.get("date")),
        code=dict(content.get("code") or {}),
        data=_text(content.get("data")),
    )


def parse_data(content: Content) -> DataRecord:
    fingerprint = {
        str(part): {str(key): value if is_int(value) else str(value) for key, value in properties.items()}
        for part, properties in content["fingerprint"].items()
    }
    changes = [DataChange(str(change["what"]), change["step"]) for change in content["changes"]]
    if not all(change.step is None or is_int(change.step) for change in changes):
        raise ValueError("a step is not an integer")
    return DataRecord(fingerprint, tuple(changes))


def parse_epoch(content: Content) -> EpochRecord:
    if not is_number(content["epoch"]):
        raise TypeError(f"epoch is {content['epoch']!r}, which is no number")
    step = content.get("step")
    constraint = content.get("constraint")
    observed = content.get("observed")
    figures = EpochFigures(
        train=_figures(content.get("train")) or {},
        validation=_figures(content.get("validation")),
        constraint=ConstraintFigures(**_known(constraint, ConstraintFigures)) if constraint else None,
        observed=ObservedFigures(**_known(observed, ObservedFigures)) if observed else None,
        layers={
            str(name): ConstraintFigures(**_known(layer, ConstraintFigures))
            for name, layer in (content.get("layers") or {}).items()
        },
    )
    return EpochRecord(
        epoch=int(float(content["epoch"])),  # OverflowError where no chart could show it
        step=_drawable(step),
        seconds=number(content.get("seconds")),
        images_per_second=number(content.get("images_per_second")),
        lr=number(content.get("lr")),
        figures=figures,
        run=_text(content.get("run")),
    )


def _known(content: Content, record: type) -> dict[str, float | None]:
    return {name: number(content.get(name)) for name in record.__dataclass_fields__}  # type: ignore[attr-defined]


def _figures(content: Any) -> Figures | None:
    """Return the numbers of a table; null is a figure that JSON could not hold."""
    if not isinstance(content, Mapping):
        return None
    values = {str(key): math.nan if value is None else number(value) for key, value in content.items()}
    return {key: value for key, value in values.items() if value is not None}


def parse_result(content: Content) -> ResultRecord:
    steps = content.get("steps")
    return ResultRecord(
        metric=str(content["metric"]),
        validation=_figures(content.get("validation")),
        test=_figures(content.get("test")),
        steps=_drawable(steps),
        seconds=number(content.get("seconds")),
        images_per_second=number(content.get("images_per_second")),
        skipped_images=int(content.get("skipped_images", 0)),
        warnings=tuple(map(str, content.get("warnings", ()))),
        model=_text(content.get("model")),
        run=_text(content.get("run")),
    )


def parse_model(content: Content) -> ModelRecord:
    built_from = content["model"]
    return ModelRecord(
        name=str(built_from["name"]),
        arguments=dict(built_from["arguments"]),
        shape=tuple(map(int, content["shape"])),
        task=str(content["task"]),
        classes=int(content["classes"]),
        run=str(content["run"]),
    )


def parse_curve(content: Content) -> CurveRecord:
    points = [
        RecordedPoint(
            ratio=round(float(point["ratio"]), 6),  # 0.7 of two runs must be one ratio
            plain=finite(float(point["plain"])) if point["plain"] is not None else math.nan,
            refit=finite(float(point["refit"])) if point["refit"] is not None else None,
            size=_size(point["costs"], point.get("milliseconds")),
            distance=number(point.get("distance")),
            chosen=_one_of(point.get("chosen"), (None, PLAIN, REFIT)),
        )
        for point in content["points"]
    ]
    if not points:
        raise ValueError("it has no points")
    if not all(0 <= point.ratio <= 1 for point in points):
        raise ValueError("a ratio is not between 0 and 1")
    calibration = content.get("calibration")
    settings = CurveSettings(
        score=str(content.get("score", CurveSettings.score)),
        allocation=_text(content.get("allocation")),
        calibration=calibration if isinstance(calibration, int) else None,
        refit=_one_of(content.get("refit", True), (True, False, AUTO)),  # True in files of earlier versions
    )
    return CurveRecord(
        kind=kind_of(content["kind"]).name,
        form=str(content["form"]),
        metric=str(content["metric"]),
        split=str(content["split"]),
        settings=settings,
        dense=finite(float(content["dense"])),
        size=_size(content.get("dense_costs"), content.get("dense_milliseconds")),
        points=tuple(sorted(points, key=lambda point: point.ratio)),
        model=_text(content.get("model")),
    )


def _one_of(value: Any, known: tuple[Any, ...]) -> Any:
    if value not in known:
        raise ValueError(f"{value!r} is not one of {', '.join(map(str, known))}")
    return value


def _size(costs: Content | None, milliseconds: Any) -> Size:
    values = {**(costs or {}), "milliseconds": milliseconds}
    measured = {name: number(values.get(name)) for name in SIZES}
    return Size(**{name: None if value is None else finite(value) for name, value in measured.items()})


def parse_spectra(content: Content) -> SpectraRecord:
    layers = {
        str(layer): {FORMER_SPECTRA.get(kind, str(kind)): _spectrum(spectrum) for kind, spectrum in spectra.items()}
        for layer, spectra in content["layers"].items()
    }
    left_out = {str(layer): str(reason) for layer, reason in content.get("left_out", {}).items()}
    return SpectraRecord(layers, left_out, _text(content.get("model")))


def _spectrum(content: Content) -> Spectrum:
    index = tuple(map(int, content["index"]))
    value = tuple(map(float, content["value"]))
    if len(index) != len(value) or not index:
        raise ValueError("it must have as many values as indices, and at least one")
    return Spectrum(int(content["count"]), index, value)


def parse_retraining(content: Content) -> RetrainingRequest:
    return _checked(RetrainingRequest(**content))
