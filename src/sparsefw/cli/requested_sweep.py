"""Turns the options of `sparsefw sweep` into a sweep, and works on it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparsefw.cli.output import Outcome, say
from sparsefw.config_base import ConfigError, parse
from sparsefw.sweep.grids import Grid, load_grid
from sparsefw.sweep.run import begin_sweep, run_sweep, usual_workers
from sparsefw.sweep.storage import shown_url, storage_url
from sparsefw.sweep.sweep import Sweep
from sparsefw.sweep.sweep_plan import SweepPlan, in_words
from sparsefw.text import counted, did_you_mean


@dataclass(frozen=True)
class SweepRequest:
    """The options of the verb."""

    grid: str | None
    join: str | None = None
    storage: str | None = None
    name: str | None = None
    out: Path | None = None
    rows: str | None = None
    changes: list[str] | tuple[str, ...] = ()
    seeds: int | None = None
    sampler: str | None = None
    trials: int | None = None
    prune: bool = False
    grace: float | None = None

    @property
    def plan(self) -> SweepPlan:
        """Plan what was asked for; the rest is as a SweepPlan has it."""
        if self.grid is None:
            raise ConfigError("which grid? see `sparsefw list grids`; or --join the STORAGE of a sweep that was begun")
        grid = with_rows(load_grid(self.grid), self.rows)
        asked = dict(
            name=self.name or grid.name, changes=tuple(self.changes), seeds=self.seeds, sampler=self.sampler,
            trials=self.trials, prune=self.prune, grace=self.grace,
        )  # fmt: skip
        given = {key: value for key, value in asked.items() if value is not None}
        return parse(SweepPlan, {**given, "grid": grid}, "sweep")

    def check_join(self) -> None:
        """Refuse what would change the plan: whoever joins takes it from the storage."""
        planned = {
            "GRID": self.grid, "--storage": self.storage, "--rows": self.rows, "--set": self.changes or None,
            "--seeds": self.seeds, "--sampler": self.sampler, "--trials": self.trials, "--prune": self.prune or None,
            "--grace": self.grace,
        }  # fmt: skip
        if given := [name for name, value in planned.items() if value is not None]:
            raise ConfigError(f"--join takes the plan from the sweep that was begun: leave {', '.join(given)} out")


def with_rows(grid: Grid, rows: str | None) -> Grid:
    """Leave all other rows of the grid out."""
    if rows is None:
        return grid
    wanted = [row.strip() for row in rows.split(",")]
    for row in wanted:
        if row not in grid.methods:
            raise ConfigError(f"--rows {row!r}{did_you_mean(row, grid.methods)}; there are {', '.join(grid.methods)}")
    return grid.model_copy(update={"methods": {row: grid.methods[row] for row in wanted}})


def begin_or_join_sweep(request: SweepRequest, data: Path | None = None) -> tuple[Sweep, str]:
    """Return the sweep, begun or joined, and the address of its storage."""
    if request.join is not None:
        request.check_join()
        url = storage_url(request.join, Path())
        return Sweep.join(url, request.name, request.out), url
    plan = request.plan
    folder = Path("runs") / f"sweep-{plan.name}" if request.out is None else request.out
    url = storage_url(request.storage, folder)
    return begin_sweep(plan, url, folder, data), url


def describe_trainings(request: SweepRequest) -> Outcome:
    """List what would be trained, row by row."""
    if request.join is not None:
        raise ConfigError("--show tells what a GRID would train; a sweep that is joined was shown where it was begun")
    plan = request.plan
    lines = []
    record = {}
    further = counted(plan.seeds - 1, "further seed")
    for row in plan.rows:
        jobs = {name: plan.chosen(row, params) for name, params in plan.jobs(row).items()}
        record[row] = jobs or plan.grid.settings(row)
        lines.append(f"{row}: {counted(plan.count(row), 'configuration')}, then {further} of the best")
        lines += [f"  {name}  {in_words(chosen)}" for name, chosen in jobs.items()]
        lines += [] if jobs else [f"  drawn from {in_words(plan.grid.settings(row))}"]
    total = sum(plan.count(row) + plan.seeds - 1 for row in plan.rows)
    epochs = plan.example(plan.rows[0]).train.epochs
    lines.append(
        f"{total} trainings of {counted(epochs, 'epoch')}; the best have their first seed already, which is only measured"
    )
    return Outcome(record, "\n".join(lines))


def work_on_sweep(
    sweep: Sweep, url: str, workers: int | None, data: Path | None, retry: bool, quiet: bool
) -> dict[str, Any]:
    """Train until the sweep is over, and return its results; retry: what failed before is tried once more."""
    tell = (lambda text: None) if quiet else say
    if retry:
        for row in sweep.plan.rows:
            for ledger in (sweep.trials(row), sweep.finals(row)):
                for name in ledger.retry():
                    tell(f"{row} {name}: once more")
    workers = usual_workers() if workers is None else workers
    tell(f"{sweep.plan.name}: {counted(workers, 'worker')}, {shown_url(url)}, runs in {sweep.folder}")
    return run_sweep(sweep, url, workers, data, tell)
