"""Honest selection: one configuration per method, chosen on validation images, reported on test images over several seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from sparsefw.environment import environment
from sparsefw.sweep.sweep import Sweep, best


def results(sweep: Sweep) -> dict[str, Any]:
    """Of every row that far: what was tried, what was chosen, and its test figures. JSON can keep it."""
    plan = sweep.plan
    return {
        "sweep": plan.name,
        "grid": plan.grid.name,
        "recipe": plan.grid.recipe,
        "kind": plan.grid.kind,
        "at": list(plan.grid.at),
        "seeds": plan.seeds,
        "finished": sweep.finished(),
        "rows": {row: _row(sweep, row) for row in plan.rows},
        **environment(),
    }


def _row(sweep: Sweep, row: str) -> dict[str, Any]:
    jobs = sweep.trials(row).jobs()
    found: dict[str, Any] = {
        "configurations": sweep.plan.count(row),
        "done": sum(job.state == "done" for job in jobs.values()),
        "stopped as hopeless": sum(job.state == "pruned" for job in jobs.values()),
        "failed": {name: job.error for name, job in jobs.items() if job.state == "failed"},
        "tried": {
            name: {
                "settings": sweep.plan.chosen(row, job.params),
                "validation": job.value,
                "dense": job.result.get("dense"),
                "plain": job.result.get("plain"),
                "folder": job.result.get("folder"),
            }
            for name, job in jobs.items()
            if job.state == "done"
        },
        "chosen": None,
    }
    if (chosen := best(jobs)) is None or sweep.searched(row) is None:
        return found
    settings = sweep.plan.chosen(row, chosen.params)
    tried = [sweep.plan.chosen(row, job.params) for job in jobs.values() if job.settled]
    finals = sweep.finals(row).jobs()
    wanted = [finals[name] for name in sweep.final_jobs(row) if name in finals]
    seeds = [dict(job.result) for job in wanted if job.state == "done"]
    found |= {"chosen": chosen.name, "settings": settings, "validation": chosen.value, "edges": edges(settings, tried)}
    found["failed"] |= {job.name: job.error for job in wanted if job.state == "failed"}
    found["test"] = summary(seeds) if seeds else None
    return found


def edges(chosen: Mapping[str, Any], tried: Sequence[Mapping[str, Any]]) -> list[str]:
    """Settings whose chosen value is the smallest or largest of those tried: a wider grid might do better."""
    found = []
    for key, value in chosen.items():
        numbers = {one[key] for one in tried if _is_number(one[key])}
        if _is_number(value) and len(numbers) > 1 and value in (min(numbers), max(numbers)):
            found.append(key)
    return found


def summary(seeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean and standard deviation over seeds. A nan makes the mean nan: a collapse is not averaged away."""
    found: dict[str, Any] = {"seeds": [one["seed"] for one in seeds], "metric": seeds[0]["metric"], "runs": list(seeds)}
    for key in ("dense", "images_per_second"):
        found[key] = spread([one[key] for one in seeds])
    for key in ("plain", "removed_refit"):
        found[key] = [spread(values) for values in zip(*(one[key] for one in seeds), strict=True)]
    found["parameters"] = seeds[0]["parameters"]
    return found


def spread(values: Sequence[float | None]) -> dict[str, float | None]:
    """Of one seed there is no deviation."""
    numbers = [math.nan if value is None else value for value in values]
    if any(map(math.isnan, numbers)):
        return {"mean": math.nan, "std": math.nan}
    return {"mean": statistics.fmean(numbers), "std": statistics.stdev(numbers) if len(numbers) > 1 else None}


def in_figures(one: Mapping[str, float | None]) -> str:
    """ "90.62 ±0.13"; "90.62" of one seed; "nan" where one of the seeds collapsed."""
    mean, std = one["mean"], one["std"]
    if mean is None or math.isnan(mean):
        return "nan"
    return f"{mean:.2f}" if std is None else f"{mean:.2f} ±{std:.2f}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
