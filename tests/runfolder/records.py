"""One record of every kind, with every field set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sparsefw.runfolder import RunFacts, RunKind
from sparsefw.runfolder.identity import identity_of
from sparsefw.runfolder.schema import (
    ConfigRecord,
    ConstraintFigures,
    CurveRecord,
    CurveSettings,
    DataRecord,
    EnvironmentRecord,
    EpochFigures,
    EpochRecord,
    ModelRecord,
    ObservedFigures,
    RecordedPoint,
    ResultRecord,
    RetrainingPhase,
    RetrainingRequest,
    Size,
    SpectraRecord,
    Spectrum,
    SweepJob,
)

FACTS = RunFacts(
    name="digits-sgd",
    kind=RunKind.RETRAINED,
    label="retrained 0.9",
    family="retrained",
    seed=3,
    metric="accuracy",
    phase=RetrainingPhase("/runs/digits-sgd", 0.9, "llr", 2, 3),
    job=SweepJob("tiny", "SGD, twice", "0003", final=True),
)
CONFIG = ConfigRecord(
    {
        "name": "digits-sgd",
        "seed": 3,
        "data": {"name": "digits"},
        "model": {"name": "resnet_digits", "arguments": {"width": 4}},
        "method": {"name": "sparsefw", "kind": "2:4", "k": 5e-05, "w": None},
        "train": {"epochs": 2},
        "curve": {"calibration": 512},
    }
)
IDENTITY = identity_of(CONFIG)
ENVIRONMENT = EnvironmentRecord({"torch": "2.13.0"}, {"gpu": None}, "2026-11-18", {"version": "0.1.0"}, "/data")
DATA = DataRecord({"train": {"images": 1400, "names": "ab"}, "test": {"images": 397, "names": "cd"}})
EPOCHS = [
    EpochRecord(1, 10, 1.5, 100.0, 0.1, EpochFigures({"loss": 2.0, "accuracy": 10.0}), IDENTITY),
    EpochRecord(
        2,
        20,
        3.0,
        110.0,
        0.05,
        EpochFigures(
            {"loss": 1.0, "accuracy": 60.0},
            {"loss": 1.1, "accuracy": 59.0},
            ConstraintFigures(1.5, 0.25, 0.9, 0.0),
            ObservedFigures(gradient_norm=0.5),
            {"conv1.weight": ConstraintFigures(2.0, 0.5, 0.8, 0.0), "layer1.0.weight": ConstraintFigures(1.0)},
        ),
        IDENTITY,
    ),
]
RESULT = ResultRecord(
    "accuracy", {"accuracy": 59.0}, {"accuracy": 58.0}, 20, 3.0, 105.0, 1, ("a warning",), "0" * 64, IDENTITY
)
MODEL = ModelRecord("resnet_digits", {"width": 4}, (1, 8, 8), "classification", 10, "1" * 64)
CURVE = CurveRecord(
    kind="filters",
    form="removed",
    metric="accuracy",
    split="test",
    settings=CurveSettings("l2", "global", 512, refit=False),
    dense=58.0,
    size=Size(100.0, 1000.0, 400.0, 2.0),
    points=(
        RecordedPoint(0.5, 50.0, 55.0, Size(50.0, 300.0, 200.0, 1.0), 0.3, "refit"),
        RecordedPoint(0.9, 10.0, None, Size(), 0.8),
    ),
    model=RESULT.model,
)
SPECTRA = SpectraRecord(
    {"conv": {"filters": Spectrum(2, (0, 1), (2.0, 1.0)), "rank": Spectrum(3, (0, 2), (1.0, 0.5))}},
    {"fc": "its weights are not finite"},
    RESULT.model,
)
REQUEST = RetrainingRequest("0123456789abcdef", 0.9, 5, "llr", 3)


def change_record(path: Path, **changes: Any) -> None:
    """Change entries of a JSON file, and take its digest out, which would show that it was changed."""
    content = {**json.loads(path.read_text()), **changes}
    del content["sha256"]
    path.write_text(json.dumps(content))


def config_without_digest(path: Path) -> str:
    """Return the text of a config.yaml without its first line, the digest, which would show that it was changed."""
    return path.read_text().partition("\n")[2]
