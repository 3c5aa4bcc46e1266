"""Trains or retrains a network, and summarizes the result."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparsefw.cli.output import Outcome, is_first_process
from sparsefw.models import is_own_network
from sparsefw.report import read_run, run_figure, save_figure
from sparsefw.runfolder import RunPaths
from sparsefw.text import shell_path
from sparsefw.train import fit
from sparsefw.train.config import RunConfig
from sparsefw.train.retrain import retrain


def train_run(
    config: RunConfig, folder: Path, data: Path | None, quiet: bool, trust: bool = False, data_changed: bool = False
) -> Outcome:
    """Train into a run folder, and draw a picture of the training."""
    result = fit(config, folder, data, trust=trust, quiet=quiet, data_changed=data_changed)
    if not is_first_process():
        return Outcome(result, "")
    picture, _ = save_figure(run_figure(read_run(folder)), RunPaths(folder).picture)
    flag = " --trust" if is_own_network(config.model.name) else ""  # which this command was given
    lines = [
        f"{config.name}: {_metric_text(result)}; {result['images_per_second']:,.0f} images/s",
        *(f"warning: {text}" for text in result["warnings"]),
        str(picture),
        f"{folder}: next, `sparsefw curve {shell_path(folder)}{flag}`",
    ]
    return Outcome({"run": folder, **result, "picture": picture}, "\n".join(lines))


def retrain_run(run: Path, out: Path, epochs: int, schedule: str, **settings: Any) -> Outcome:
    """Prune and retrain a run, in one phase or several."""
    phases = retrain(run, out, epochs=epochs, schedule=schedule, **settings)
    lines = [
        f"{phase.folder}: {phase.zeros:.2%} of the weights are 0, retrained for {epochs} epochs ({schedule}); "
        + _metric_text(phase.result)
        for phase in phases
    ]
    return Outcome([phase._asdict() for phase in phases], "\n".join(lines))


def _metric_text(result: Mapping[str, Any]) -> str:
    """Return the metric on the validation and test images, as far as there are any."""
    metric = result["metric"]
    figures = [f"{split} {result[split][metric]:.2f}" for split in ("validation", "test") if result[split]]
    return f"{metric} {', '.join(figures)}"
