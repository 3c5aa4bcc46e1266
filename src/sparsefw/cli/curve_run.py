"""Measures a curve of a network, and draws that of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparsefw.cli.output import Outcome
from sparsefw.cli.subjects import form_line
from sparsefw.report import curves_figure, read_run, save_figure
from sparsefw.runfolder import RunPaths, Split
from sparsefw.train.evaluate_run import TrainedRun
from sparsefw.train.subject import Subject


def curve_run(
    subject: Subject, kind: str | None, at: Sequence[float] | None, form: str, split: str, settings: dict[str, Any]
) -> Outcome:
    """Measure a curve; that of a run on its test images is also drawn, into the run folder."""
    folder = subject.folder.path if isinstance(subject, TrainedRun) else None
    retrained = folder is not None and read_run(folder).retrained  # now, not after minutes: a damaged run is refused
    curve = subject.curve(kind, at, form, split, **settings)
    history = [] if folder is None else ["retrained before" if retrained else "never retrained"]
    lines = [
        ", ".join([f"{subject.title}: {subject.task.metric} in % on the {split} images", form, *history]),
        *form_line(subject),
        str(curve),
    ]
    if folder is not None and split == Split.TEST:
        figure = curves_figure([read_run(folder)], curve.kind, form)
        picture, _ = save_figure(figure, RunPaths(folder).curve_picture(curve.kind, form))
        lines.append(str(picture))
    record = {"run": folder or subject.name, "metric": subject.task.metric, "split": split, **curve.to_json()}
    return Outcome(record, "\n".join(lines))
