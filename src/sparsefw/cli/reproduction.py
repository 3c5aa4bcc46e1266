"""Shows or runs an experiment of the paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sparsefw.cli.output import Outcome
from sparsefw.reproduce import ExperimentOptions, find_experiment
from sparsefw.text import print_status


def experiment_options(out: Path | None, quiet: bool, **given: Any) -> ExperimentOptions:
    """Return the options of an experiment; refuse an --out that is a file."""
    if out is not None and out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file; must be a folder")
    log = (lambda line: None) if quiet else print_status
    return ExperimentOptions(folder=Path("runs", "reproduce") if out is None else out, log=log, **given)


def show_experiment(name: str, options: ExperimentOptions) -> Outcome:
    """List what an experiment would train."""
    experiment = find_experiment(name)
    experiment.check_options(options)
    lines = experiment.describe(options)
    return Outcome({"name": name, "shows": experiment.shows, "planned": lines}, "\n".join([experiment.shows, *lines]))


def run_experiment(name: str, options: ExperimentOptions) -> Outcome:
    """Run an experiment, and write its tables and figures."""
    experiment = find_experiment(name)
    experiment.check_options(options)
    options.log(experiment.shows)
    result = experiment.run(options)
    files = result.write(experiment.result_folder(options), name)
    record = {"name": name, "title": result.title, **result.record, "deviations": result.deviations, "files": files}
    return Outcome(record, f"{result.text()}\n{files[0]}, and {len(files) - 1} files beside it")
