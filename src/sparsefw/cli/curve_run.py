"""Measures a curve of a run, and draws it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparsefw.cli.output import Outcome
from sparsefw.report import curves_figure, read_run, save_figure
from sparsefw.runfolder import RunPaths, Split
from sparsefw.train.evaluate_run import TrainedRun


def curve_run(
    trained: TrainedRun,
    run: Path,
    kind: str | None,
    at: Sequence[float] | None,
    form: str,
    split: str,
    settings: dict[str, Any],
) -> Outcome:
    """Measure a curve, and draw it into the run folder if it is of the test images."""
    retrained = read_run(run).retrained  # now, not after minutes of work: a damaged run is refused
    curve = trained.curve(kind, at, form, split, **settings)
    history = "retrained before" if retrained else "never retrained"
    lines = [
        f"{trained.config.name}: {trained.task.metric} in % on the {split} images, {form}, {history}",
        str(curve),
    ]
    if split == Split.TEST:
        figure = curves_figure([read_run(run)], curve.kind, form)
        picture, _ = save_figure(figure, RunPaths(run).curve_picture(curve.kind, form))
        lines.append(str(picture))
    record = {"run": run, "metric": trained.task.metric, "split": split, **curve.to_json()}
    return Outcome(record, "\n".join(lines))
