"""Run folders as records. A run that was killed, or lost a file, is read as far as it goes, and says what is missing."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from sparsefw.kinds import kind_of
from sparsefw.report.names import RETRAINED, named, own_name
from sparsefw.report.records import (
    SIZES,
    Damaged,
    Epoch,
    How,
    Point,
    ReportError,
    Run,
    RunCurve,
    Size,
    Spectrum,
    finite,
    number,
)

METRICS = ("accuracy", "mean_iou")
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times faster, where libyaml is there


def read_runs(folders: Iterable[Path | str]) -> tuple[list[Run], list[Damaged]]:
    """All runs in these folders, each a run or a folder that holds runs at any depth; those that cannot be read are listed."""
    runs: list[Run] = []
    damaged: list[Damaged] = []
    for folder in dict.fromkeys(found for given in folders for found in _expanded(Path(given))):
        try:
            runs.append(read_run(folder))
        except ReportError as error:
            damaged.append(Damaged(folder, str(error).removeprefix(f"{folder}: ")))
    return named(runs), damaged


def read_run(folder: Path | str) -> Run:
    folder = Path(folder)
    if not _is_run(folder):
        raise ReportError(f"{folder}: not a run folder (no config.yaml, metrics.jsonl, result.json or curves)")
    config, problem = _config(folder)
    if problem:
        raise ReportError(f"{folder}: {problem}")
    notes: list[str] = []
    result = _json(folder / "result.json", notes)
    if result is None and not notes:
        notes.append(_failure(folder) or "unfinished: no result.json")
    records = list(_records(folder / "metrics.jsonl", notes))
    metric = _metric(result, records)
    environment = _json(folder / "environment.json", notes) or {}
    method = str(environment.get("method") or own_name(config))
    if config["method"]["name"] == "masked" and not method.startswith(RETRAINED):
        method = f"{RETRAINED} {method}"
    return Run(
        folder,
        method,
        method,
        config,
        metric,
        _epochs(records, metric),
        result,
        environment,
        tuple(_curves(folder, notes)),
        _spectra(folder, notes),
        tuple(notes),
    )


def _failure(folder: Path) -> str | None:
    """What a sweep wrote down about a training that failed."""
    try:
        lines = (folder / "error.txt").read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return None
    return next((f"failed: {line.strip()}" for line in reversed(lines) if line.strip()), None)


def _expanded(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise ReportError(f"{folder}: {'a file, where a run is a folder' if folder.exists() else 'no such folder'}")
    found = []
    for path, inner, _ in os.walk(folder):
        if _is_run(Path(path)):
            found.append(Path(path))
            inner.clear()  # what lies in a run folder belongs to it
        inner[:] = sorted(name for name in inner if not name.startswith("."))
    if not found:
        raise ReportError(f"{folder}: neither a run folder nor a folder that holds any")
    return found


def _is_run(folder: Path) -> bool:
    """One file is enough: a run that lost its config.yaml must be listed as damaged, not passed over."""
    return any((folder / name).exists() for name in ("config.yaml", "metrics.jsonl", "result.json", "curves"))


def _config(folder: Path) -> tuple[dict[str, Any], str | None]:
    """The configuration, or what is wrong with it."""
    try:
        config = yaml.load((folder / "config.yaml").read_text(encoding="utf-8"), LOADER)
    except FileNotFoundError:
        return {}, "config.yaml is missing"
    except OSError as error:
        return {}, f"config.yaml cannot be read ({error.strerror})"
    except (ValueError, yaml.YAMLError):
        return {}, "config.yaml cannot be read (it is no YAML)"
    if not isinstance(config, dict) or not isinstance(method := config.get("method"), dict) or "name" not in method:
        return {}, "config.yaml has no method.name"
    return config, None


def _json(path: Path, notes: list[str]) -> dict[str, Any] | None:
    """None if there is no such file; a file that is there and cannot be read is noted."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        content = None
    if not isinstance(content, dict):
        notes.append(f"{path.name} cannot be read")
        return None
    return content


def _records(path: Path, notes: list[str]) -> Iterator[dict[str, Any]]:
    """The lines that are whole. A kill tears the last one at most; anything else that is broken is counted, too."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        notes.append("no metrics.jsonl")
        return
    broken = []
    for place, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if isinstance(record, dict) and number(record.get("epoch")) is not None:
            yield record
        elif line.strip():
            broken.append(place)
    if broken == [len(lines)]:
        notes.append("the last line of metrics.jsonl is torn")
    elif broken:
        notes.append(f"metrics.jsonl: {len(broken)} lines cannot be read, the first is line {broken[0]}")


def _epochs(records: list[dict[str, Any]], metric: str) -> tuple[Epoch, ...]:
    """One per epoch: a run that was resumed may have written some twice, and the last holds."""

    def of(record: dict[str, Any], part: str, key: str, scale: float = 1.0) -> float | None:
        values = record.get(part)
        value = number(values.get(key)) if isinstance(values, dict) else None
        return None if value is None else scale * value

    last = {
        int(record["epoch"]): Epoch(
            int(record["epoch"]),
            of(record, "train", metric),
            of(record, "validation", metric),
            of(record, "constraint", "renewed"),
            of(record, "constraint", "decayed", 100.0),
            of(record, "constraint", "compressible", 100.0),
        )
        for record in records
    }
    return tuple(last[epoch] for epoch in sorted(last))


def _metric(result: dict[str, Any] | None, records: list[dict[str, Any]]) -> str:
    if result and result.get("metric") in METRICS:
        return str(result["metric"])
    seen = {key for record in records[-1:] for split in ("train", "validation") for key in record.get(split) or ()}
    return next((metric for metric in METRICS if metric in seen), METRICS[0])


def _curves(folder: Path, notes: list[str]) -> Iterator[RunCurve]:
    """On test images from curves/, on validation images from curves-validation/."""
    for place in ("curves", "curves-validation"):
        for path in sorted((folder / place).glob("*.json")):
            content = _json(path, notes)
            if content is None:
                continue
            try:
                yield _curve(content)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                notes.append(f"{path.name} is not a curve ({type(error).__name__}: {error})")


def _curve(content: dict[str, Any]) -> RunCurve:
    points = tuple(
        Point(
            round(float(point["ratio"]), 6),  # 0.7 of two runs must be one ratio
            finite(float(point["plain"])) if point["plain"] is not None else math.nan,
            finite(float(point["refit"])) if point["refit"] is not None else None,
            _size(point["costs"], point.get("milliseconds")),
        )
        for point in content["points"]
    )
    if not points:
        raise ValueError("it has no points")
    if not all(0 <= point.ratio <= 1 for point in points):
        raise ValueError("a ratio is not between 0 and 1")
    calibration, allocation = content.get("calibration"), content.get("allocation")
    return RunCurve(
        kind_of(content["kind"]).name,
        str(content["form"]),
        str(content.get("metric", METRICS[0])),
        str(content.get("split", "test")),
        How(
            str(content.get("score", How.score)),
            None if allocation is None else str(allocation),
            calibration if isinstance(calibration, int) else None,
        ),
        finite(float(content["dense"])),
        _size(content.get("dense_costs"), content.get("dense_milliseconds")),
        tuple(sorted(points, key=lambda point: point.ratio)),
    )


def _size(costs: Any, milliseconds: Any) -> Size:
    found = {**(costs or {}), "milliseconds": milliseconds}
    return Size(**{key: number(found.get(key)) for key in SIZES})


def _spectra(folder: Path, notes: list[str]) -> dict[str, dict[str, Spectrum]]:
    content = _json(folder / "spectra.json", notes)
    if content is None:
        return {}
    try:
        notes.extend(f"no spectrum of {layer}: {why}" for layer, why in content.get("left_out", {}).items())
        return {
            str(layer): {str(what): _spectrum(one) for what, one in both.items()}
            for layer, both in content["layers"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        notes.append(f"spectra.json does not hold spectra ({type(error).__name__}: {error})")
        return {}


def _spectrum(content: dict[str, Any]) -> Spectrum:
    index, value = tuple(map(int, content["index"])), tuple(map(float, content["value"]))
    if len(index) != len(value) or not index:
        raise ValueError("as many values as indices are needed")
    return Spectrum(int(content["count"]), index, value)
