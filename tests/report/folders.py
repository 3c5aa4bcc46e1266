"""Run folders as `sparsefw train` and `sparsefw curve` write them, with numbers like those of the digits demo."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

RATIOS = (0.5, 0.6, 0.7, 0.8, 0.9)
PARAMETERS = (77_754, 50_352, 28_047, 13_007, 3_266)
SGD = dict(dense=97.48, plain=(74.06, 38.54, 19.4, 11.84, 17.63), refit=(96.98, 95.72, 93.7, 91.44, 80.1))
SPARSE = dict(dense=95.97, plain=(95.97, 95.97, 96.22, 93.45, 59.19), refit=(95.97, 95.97, 95.97, 95.72, 90.93))


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
    **train: Any,
) -> Path:
    """One run folder; curves as `curve` gives them. renewals: of its constrained weights, a tenth of which decays with each."""
    (folder / "curves").mkdir(parents=True)
    config = {
        "name": name,
        "seed": seed,
        "data": {"name": "digits", "batch_size": 64},
        "model": {"name": "resnet-mini", "width": 16},
        "method": method or {"name": "sgd", "momentum": 0.9},
        "train": {"epochs": epochs, "lr": 0.1, **train},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    lines = []
    for epoch in range(1, epochs + 1):
        reached = final - 60 * 0.6**epoch
        seen = {"train": {"loss": 0.1, "accuracy": reached + 1}, "validation": {"loss": 0.2, "accuracy": reached}}
        if renewals is not None:
            renewed = renewals * epoch / epochs
            seen["constraint"] = {"renewed": renewed, "decayed": renewed / 10, "compressible": 0.9, "clamped": 0.0}
        lines.append(
            {"epoch": epoch, "step": 22 * epoch, "seconds": 4.1, "images_per_second": 5100.0, "lr": 0.1, **seen}
        )
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if finished:
        test = {"accuracy": final, "top5": 99.9, "loss": 0.1}
        done = {"metric": "accuracy", "validation": {"accuracy": final - 0.5}, "test": test, "steps": 22 * epochs}
        (folder / "result.json").write_text(json.dumps({**done, "seconds": 61.5, "images_per_second": 5100.0}))
    versions = {"sparsefw": "0.1.0", "torch": "2.13.0", "python": "3.11.2"}
    hardware = {"cpu": "Example CPU", "system": "Linux", "cpus": 2, "gpu": None}
    (folder / "environment.json").write_text(
        json.dumps({"versions": versions, "hardware": hardware, "date": "2026-11-15"})
    )
    for one in curves:
        place = folder / ("curves" if one["split"] == "test" else f"curves-{one['split']}")
        place.mkdir(exist_ok=True)
        (place / f"{one['kind']}-{one['form']}.json".replace(":", "")).write_text(json.dumps(one))
    return folder


def write_spectra(folder: Path, **layers: Sequence[float]) -> Path:
    """spectra.json with these filter norms, and half of them as singular values."""

    def spectrum(values: Sequence[float]) -> dict[str, Any]:
        return {"count": len(values), "index": list(range(len(values))), "value": list(values)}

    found = {
        name: {"filters": spectrum(values), "singular values": spectrum([value / 2 for value in values])}
        for name, values in layers.items()
    }
    (folder / "spectra.json").write_text(json.dumps({"layers": found, "left_out": {}}))
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
