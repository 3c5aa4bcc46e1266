"""Run folders as `sparsefw train` and `sparsefw curve` write them, with numbers like those of the digits demo."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparsefw.runfolder import EpochWriter, RunFacts, RunKind, RunWriter, Split
from sparsefw.runfolder.schema import (
    ConfigRecord,
    ConstraintFigures,
    EnvironmentRecord,
    EpochFigures,
    EpochRecord,
    ResultRecord,
    SpectraRecord,
    Spectrum,
    SweepJob,
)

RATIOS = (0.5, 0.6, 0.7, 0.8, 0.9)
PARAMETERS = (77_754, 50_352, 28_047, 13_007, 3_266)
SGD = dict(dense=97.48, plain=(74.06, 38.54, 19.4, 11.84, 17.63), refit=(96.98, 95.72, 93.7, 91.44, 80.1))
SPARSE = dict(dense=95.97, plain=(95.97, 95.97, 96.22, 93.45, 59.19), refit=(95.97, 95.97, 95.97, 95.72, 90.93))
TITLES = {"sgd": "SGD", "sparsefw": "SparseFW", "nuc": "NUC", "masked": "retrained"}
LABELLED = ("k", "w", "strength", "removed")  # settings that a label contains
ENVIRONMENT = EnvironmentRecord(
    versions={"sparsefw": "0.1.0", "torch": "2.13.0", "python": "3.11.2"},
    hardware={"cpu": "Example CPU", "system": "Linux", "cpus": 2, "gpu": None},
    date="2026-11-15",
)


def curve(
    dense: float,
    plain: Sequence[Any],
    refit: Sequence[Any],
    *,
    kind: str = "filters",
    form: str = "removed",
    **more: Any,
) -> dict:
    """The content of a file in curves/."""
    costs = [dict(parameters=p, macs=10 * p, bytes=4 * p) if form == "removed" else None for p in PARAMETERS]
    points = [
        dict(ratio=r, plain=p, refit=f, distance=0.5, costs=c, milliseconds=None)
        for r, p, f, c in zip(RATIOS, plain, refit, costs, strict=True)
    ]
    whole = dict(parameters=308_074, macs=3_034_368, bytes=1_237_744)
    return (
        dict(
            kind=kind,
            form=form,
            dense=dense,
            dense_costs=whole,
            dense_milliseconds=None,
            points=points,
            metric="accuracy",
            split="test",
        )
        | more
    )


def facts_of(name: str, method: dict[str, Any], seed: int, **more: Any) -> RunFacts:
    """What a run of this method records about itself."""
    title = TITLES.get(method["name"], method["name"])
    family = " ".join([title, *([method["kind"]] if "kind" in method else [])])
    settings = {key: method[key] for key in LABELLED if method.get(key) is not None}
    words = [f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}" for key, value in settings.items()]
    kind = RunKind.RETRAINED if method["name"] == "masked" else RunKind.TRAINED
    return RunFacts(name, kind, " ".join([family, *words]), family, seed, **more)


def write_run(
    folder: Path,
    method: dict[str, Any] | None = None,
    *curves: dict[str, Any],
    name: str = "digits-sgd",
    seed: int = 0,
    epochs: int = 15,
    final: float = 97.5,
    finished: bool = True,
    renewals: float | None = None,
    job: SweepJob | None = None,
    metric: str = "accuracy",
    own_model: str | None = None,
    **train: Any,
) -> Path:
    """One run folder; curves as `curve` gives them. renewals: of its constrained weights, a tenth of which decays with each."""
    method = method or {"name": "sgd", "momentum": 0.9}
    config = {
        "name": name,
        "seed": seed,
        "data": {"name": "digits", "batch_size": 64},
        "model": {"name": own_model or "resnet-mini", "width": 16},
        "method": method,
        "train": {"epochs": epochs, "lr": 0.1, **train},
    }
    writer = RunWriter(folder)
    facts = facts_of(name, method, seed, metric=metric, job=job)
    writer.begin(ConfigRecord(config), facts, ENVIRONMENT)
    records = EpochWriter(folder, 0)
    for epoch in range(1, epochs + 1):
        reached = final - 60 * 0.6**epoch
        constraint = None
        if renewals is not None:
            renewed = renewals * epoch / epochs
            constraint = ConstraintFigures(renewed, renewed / 10, 0.9, 0.0)
        figures = EpochFigures({"loss": 0.1, "accuracy": reached + 1}, {"loss": 0.2, "accuracy": reached}, constraint)
        records.append(EpochRecord(epoch, 22 * epoch, 4.1, 5100.0, 0.1, figures))
    if finished:
        test = {"accuracy": final, "top5": 99.9, "loss": 0.1}
        writer.result(ResultRecord(metric, {"accuracy": final - 0.5}, test, 22 * epochs, 61.5, 5100.0))
    for content in curves:
        path = writer.paths.curve(content["kind"], content["form"], Split(content["split"]))
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content))
    return folder


def write_spectra(folder: Path, **layers: Sequence[float]) -> Path:
    """spectra.json with these filter norms, and half of them as singular values."""

    def spectrum(values: Sequence[float]) -> Spectrum:
        return Spectrum(len(values), tuple(range(len(values))), tuple(values))

    spectra = {
        name: {"filters": spectrum(values), "singular values": spectrum([value / 2 for value in values])}
        for name, values in layers.items()
    }
    RunWriter(folder).spectra(SpectraRecord(spectra))
    return folder


def write_sweep(folder: Path) -> Path:
    """SGD with a test curve, and SparseFW at two k and three w on validation images: at k, w all is k + 10 w below 95."""
    write_run(folder / "sgd", None, curve(**SGD))
    for k in (1, 2):
        for w in (0.1, 0.2, 0.4):
            plain = [95 - k - 10 * w] * 5
            values = curve(95.0 + k, plain, [None] * 5, split="validation")
            write_run(folder / f"k{k}w{w}", sparse(k=k, w=w), values)
    return folder


def sparse(kind: str = "filters", k: float = 0.3, w: float = 0.33) -> dict[str, Any]:
    return {"name": "sparsefw", "kind": kind, "k": k, "w": w, "momentum": 0.9}


def write_demo(folder: Path) -> Path:
    """The two runs of the demo."""
    write_run(folder / "sgd", None, curve(**SGD))
    write_run(folder / "sfw", sparse(), curve(**SPARSE), name="digits-sparsefw", final=96.0)
    return folder
