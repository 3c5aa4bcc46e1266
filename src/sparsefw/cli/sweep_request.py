"""Turns the options of `sparsefw sweep` into a plan, and runs it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sparsefw.cli.output import Outcome
from sparsefw.cli.sweep_tables import results_text
from sparsefw.config_base import ConfigError, parse
from sparsefw.sweep.grids import Grid, load_grid
from sparsefw.sweep.processes import default_workers
from sparsefw.sweep.storage import storage_url, url_without_password
from sparsefw.sweep.supervisor import begin_sweep, run_sweep
from sparsefw.sweep.sweep import Sweep
from sparsefw.sweep.sweep_plan import SweepPlan, settings_text
from sparsefw.text import counted, did_you_mean, print_status


@dataclass(frozen=True)
class SweepRequest:
    """The options of `sparsefw sweep` that say which sweep to run; None means that an option was not given."""

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
    trust: bool = False

    def plan(self) -> SweepPlan:
        """Return the requested plan; options that were not given have the defaults of SweepPlan."""
        if self.grid is None:
            raise ConfigError(
                "give a GRID of `sparsefw list grids`, or --join STORAGE to help with a sweep that was begun"
            )
        grid = with_rows(load_grid(self.grid), self.rows)
        options = {
            "name": self.name or grid.name,
            "changes": tuple(self.changes),
            "seeds": self.seeds,
            "sampler": self.sampler,
            "trials": self.trials,
            "prune": self.prune,
            "grace": self.grace,
        }
        given = {key: value for key, value in options.items() if value is not None}
        return parse(SweepPlan, {**given, "grid": grid}, "sweep")

    def check_join(self) -> None:
        """Refuse options that would change the plan: --join takes it from the storage."""
        planned = {
            "GRID": self.grid,
            "--storage": self.storage,
            "--rows": self.rows,
            "--set": self.changes or None,
            "--seeds": self.seeds,
            "--sampler": self.sampler,
            "--trials": self.trials,
            "--prune": self.prune or None,
            "--grace": self.grace,
        }
        if given := [name for name, value in planned.items() if value is not None]:
            raise ConfigError(f"--join takes the plan from the storage: leave {', '.join(given)} out")


def with_rows(grid: Grid, rows: str | None) -> Grid:
    """Return the grid with only the given rows, such as "SparseFW,SSL"; None: with all."""
    if rows is None:
        return grid
    wanted = [row.strip() for row in rows.split(",")]
    for row in wanted:
        if row not in grid.methods:
            raise ConfigError(f"--rows {row!r}{did_you_mean(row, grid.methods)}; there are {', '.join(grid.methods)}")
    return grid.model_copy(update={"methods": {row: grid.methods[row] for row in wanted}})


def begin_or_join_sweep(request: SweepRequest, data: Path | None = None) -> tuple[Sweep, str]:
    """Return the sweep, begun or joined, and the URL of its storage."""
    if request.join is not None:
        request.check_join()
        url = storage_url(request.join, Path())
        return Sweep.join(url, request.name, request.out, request.trust), url
    plan = request.plan()
    folder = Path("runs") / f"sweep-{plan.name}" if request.out is None else request.out
    url = storage_url(request.storage, folder)
    return begin_sweep(plan, url, folder, data, request.trust), url


def show_trainings(request: SweepRequest) -> Outcome:
    """List the trainings of a sweep, row by row."""
    if request.join is not None:
        raise ConfigError("--show lists the trainings of a GRID; it does not work with --join")
    plan = request.plan()
    lines = []
    record = {}
    further_seeds = counted(plan.seeds - 1, "further seed")
    for row in plan.rows:
        jobs = {name: plan.varied_settings(row, params) for name, params in plan.jobs(row).items()}
        lines.append(f"{row}: {counted(plan.count(row), 'configuration')}, then {further_seeds} of the best")
        if jobs:
            record[row] = jobs
            lines += [f"  {name}  {settings_text(settings)}" for name, settings in jobs.items()]
        else:
            record[row] = plan.grid.settings(row)
            lines.append(f"  drawn from {settings_text(record[row])}")
    total = sum(plan.count(row) + plan.seeds - 1 for row in plan.rows)
    epochs = plan.example(plan.rows[0]).train.epochs
    lines.append(
        f"{total} trainings of {counted(epochs, 'epoch')}; the first seed of the best is trained already, and only evaluated"
    )
    return Outcome(record, "\n".join(lines))


def run_requested_sweep(
    request: SweepRequest, workers: int | None, data: Path | None, retry: bool, quiet: bool
) -> Outcome:
    """Run a sweep until it is finished; retry: also the jobs that failed before."""
    sweep, url = begin_or_join_sweep(request, data)
    log = (lambda line: None) if quiet else print_status
    if retry:
        for row in sweep.plan.rows:
            for ledger in (sweep.configuration_ledger(row), sweep.seed_ledger(row)):
                for name in ledger.retry_failed():
                    log(f"{row} {name}: trying again")
    workers = default_workers() if workers is None else workers
    log(f"{sweep.plan.name}: {counted(workers, 'worker')}, {url_without_password(url)}, runs in {sweep.folder}")
    results = run_sweep(sweep, url, workers, data, log)
    has_empty_row = not all(row.get("test") for row in results["rows"].values())
    return Outcome(results, results_text(results, sweep.folder), failed=has_empty_row)
