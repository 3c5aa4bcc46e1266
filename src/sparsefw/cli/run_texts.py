"""Says in words what came of a training, of a retraining and of a curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sparsefw.compression import Curve
from sparsefw.train.config import RunConfig
from sparsefw.train.evaluate_run import Study
from sparsefw.train.folder import is_own_code
from sparsefw.train.retrain import Phase


def training_text(config: RunConfig, folder: Path, found: Mapping[str, Any], picture: Path) -> str:
    trust = " --trust" if is_own_code(config.model.name) else ""
    lines = [
        f"{config.name}: {_metric_text(found)}; {found['images_per_second']:,.0f} images/s",
        *(f"warning: {text}" for text in found.get("warnings", ())),  # runs of earlier versions have none
        str(picture),
        f"{folder}: next, `sparsefw curve {folder}{trust}`",
    ]
    return "\n".join(lines)


def retraining_text(phases: Sequence[Phase], epochs: int, schedule: str) -> str:
    lines = [
        f"{phase.folder}: {phase.zeros:.2%} of the weights are 0, retrained for {epochs} epochs ({schedule}); "
        + _metric_text(phase.result)
        for phase in phases
    ]
    return "\n".join(lines)


def curve_text(study: Study, curve: Curve, form: str, split: str) -> str:
    again = "retrained before" if study.config.method.name == "masked" else "never retrained"
    return f"{study.config.name}: {study.task.metric} in % on the {split} images, {form}, {again}\n{curve}"


def _metric_text(found: Mapping[str, Any]) -> str:
    """Name the metric and its figures, of the images that there are."""
    metric = found["metric"]
    figures = [f"{split} {found[split][metric]:.2f}" for split in ("validation", "test") if found[split]]
    return f"{metric} {', '.join(figures)}"
