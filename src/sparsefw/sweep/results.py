"""The results of a sweep: one configuration per row, chosen on validation images, reported on test images over several seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from sparsefw.environment import environment
from sparsefw.scalars import is_number
from sparsefw.sweep.jobs import JobState
from sparsefw.sweep.sweep import Sweep, best_job


def sweep_results(sweep: Sweep) -> dict[str, Any]:
    """Return the configurations tried so far, the chosen one and its test figures for every row, as JSON values."""
    plan = sweep.plan
    return {
        "sweep": plan.name,
        "grid": plan.grid.name,
        "recipe": plan.grid.recipe,
        "kind": plan.grid.kind,
        "at": list(plan.grid.at),
        "seeds": plan.seeds,
        "finished": sweep.finished(),
        "rows": {row: _row_results(sweep, row) for row in plan.rows},
        **environment(),
    }


def _row_results(sweep: Sweep, row: str) -> dict[str, Any]:
    plan = sweep.plan
    jobs = sweep.configuration_ledger(row).jobs()
    results: dict[str, Any] = {
        "configurations": plan.count(row),
        "done": sum(job.state is JobState.DONE for job in jobs.values()),
        "stopped as hopeless": sum(job.state is JobState.PRUNED for job in jobs.values()),
        "failed": {name: job.error for name, job in jobs.items() if job.state is JobState.FAILED},
        "tried": {
            name: {
                "settings": plan.varied_settings(row, job.params),
                "validation": job.value,
                "dense": job.result.get("dense"),
                "plain": job.result.get("plain"),
                "folder": job.result.get("folder"),
            }
            for name, job in jobs.items()
            if job.state is JobState.DONE
        },
        "chosen": None,
    }
    chosen = best_job(jobs)
    if chosen is None or sweep.finished_configurations(row) is None:
        return results
    settings = plan.varied_settings(row, chosen.params)
    tried = [plan.varied_settings(row, job.params) for job in jobs.values() if job.finished]
    posted = sweep.seed_ledger(row).jobs()
    seed_jobs = [posted[name] for name in sweep.seed_jobs(row) if name in posted]
    seeds = [dict(job.result) for job in seed_jobs if job.state is JobState.DONE]
    results["chosen"] = chosen.name
    results["settings"] = settings
    results["validation"] = chosen.value
    results["edges"] = settings_at_edge(settings, tried)
    results["failed"] |= {job.name: job.error for job in seed_jobs if job.state is JobState.FAILED}
    results["test"] = summarize_seeds(seeds) if seeds else None
    return results


def settings_at_edge(chosen: Mapping[str, Any], tried: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the settings whose chosen value is the smallest or largest that was tried: a wider grid might do better."""
    at_edge = []
    for key, value in chosen.items():
        numbers = {settings[key] for settings in tried if is_number(settings[key])}
        if is_number(value) and len(numbers) > 1 and value in (min(numbers), max(numbers)):
            at_edge.append(key)
    return at_edge


def summarize_seeds(seeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean and the standard deviation over seeds of all figures of a configuration."""
    summary: dict[str, Any] = {
        "seeds": [seed["seed"] for seed in seeds],
        "metric": seeds[0]["metric"],
        "runs": list(seeds),
    }
    for key in ("dense", "images_per_second"):
        summary[key] = mean_and_std([seed[key] for seed in seeds])
    for key in ("plain", "removed_refit"):
        summary[key] = [mean_and_std(values) for values in zip(*(seed[key] for seed in seeds), strict=True)]
    summary["parameters"] = seeds[0]["parameters"]
    return summary


def mean_and_std(values: Sequence[float | None]) -> dict[str, float | None]:
    """Return the mean and the standard deviation; std is None for one value.

    A value of None or nan makes both nan: the mean must not hide a run that collapsed.

    >>> mean_and_std([90.0]), mean_and_std([90.0, 92.0])["mean"], mean_and_std([90.0, None])["mean"]
    ({'mean': 90.0, 'std': None}, 91.0, nan)
    """
    numbers = [math.nan if value is None else value for value in values]
    if any(map(math.isnan, numbers)):
        return {"mean": math.nan, "std": math.nan}
    return {"mean": statistics.fmean(numbers), "std": statistics.stdev(numbers) if len(numbers) > 1 else None}


def mean_and_std_text(figure: Mapping[str, float | None]) -> str:
    """Return the text of a table cell.

    >>> mean_and_std_text({"mean": 90.62, "std": 0.13}), mean_and_std_text({"mean": 90.62, "std": None})
    ('90.62 ±0.13', '90.62')
    """
    mean = figure["mean"]
    std = figure["std"]
    if mean is None or math.isnan(mean):
        return "nan"
    return f"{mean:.2f}" if std is None else f"{mean:.2f} ±{std:.2f}"


def figure_cells(row: Mapping[str, Any], ratios: int, figures: str = "plain") -> list[str]:
    """Return the test figures of a row as table cells: dense, then at every ratio; "-" if there are none.

    Args:
        row: a row of the results
        ratios: how many there are
        figures: "plain" (masked) or "removed_refit"
    """
    test = row.get("test")
    if not test:
        return ["-"] * (ratios + 1)
    return [mean_and_std_text(figure) for figure in (test["dense"], *test[figures])]
