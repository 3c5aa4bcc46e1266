"""Turns the options of `sparsefw reproduce` into an experiment, planned or run."""

from __future__ import annotations

from pathlib import Path

from sparsefw.cli.output import Outcome, say
from sparsefw.reproduce import Setting, find_experiment
from sparsefw.sweep.run import usual_workers


def experiment_setting(
    quick: bool,
    seeds: int | None,
    data: Path | None,
    workers: int | None,
    changes: list[str],
    storage: str | None,
    out: Path | None,
    quiet: bool,
) -> Setting:
    """Check the options, and fill in what was not given."""
    if out is not None and out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file; it is to be a folder")
    return Setting(
        folder=Path("runs", "reproduce") if out is None else out,
        quick=quick,
        seeds=seeds,
        data=data,
        workers=usual_workers() if workers is None else workers,
        changes=tuple(changes),
        storage=storage,
        say=(lambda text: None) if quiet else say,
    )


def plan_experiment(name: str, setting: Setting) -> Outcome:
    """List what would be trained."""
    experiment = find_experiment(name)
    lines = experiment.planned(setting)
    return Outcome({"name": name, "shows": experiment.shows, "planned": lines}, "\n".join([experiment.shows, *lines]))


def run_experiment(name: str, setting: Setting) -> Outcome:
    """Run it to the end, and write its tables and figures."""
    experiment = find_experiment(name)
    setting.say(experiment.shows)
    found = experiment.run(setting)
    folder = setting.folder / (f"quick-{name}" if setting.quick else name)
    files = found.write(folder, name)
    record = {"name": name, "title": found.title, **found.record, "deviations": found.deviations, "files": files}
    return Outcome(record, f"{found.text()}\n{files[0]}, and {len(files) - 1} files beside it")
