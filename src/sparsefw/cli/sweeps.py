"""`sparsefw sweep`: from what was asked for to a sweep, and from its results to a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparsefw.cli.output import say
from sparsefw.cli.small import Outcome
from sparsefw.report.tables import Table
from sparsefw.sweep.grids import Grid, load_grid
from sparsefw.sweep.plan import SweepPlan, in_words
from sparsefw.sweep.run import begin_sweep, run_sweep, usual_workers
from sparsefw.sweep.select import in_figures
from sparsefw.sweep.storage import shown_url, storage_url
from sparsefw.sweep.sweep import Sweep
from sparsefw.typed import ConfigError, parse
from sparsefw.words import counted, did_you_mean


@dataclass(frozen=True)
class Asked:
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
        """What was not asked for is as a SweepPlan has it."""
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
        """Whoever joins takes the plan from the storage: what would change it is refused."""
        planned = {
            "GRID": self.grid, "--storage": self.storage, "--rows": self.rows, "--set": self.changes or None,
            "--seeds": self.seeds, "--sampler": self.sampler, "--trials": self.trials, "--prune": self.prune or None,
            "--grace": self.grace,
        }  # fmt: skip
        if given := [name for name, value in planned.items() if value is not None]:
            raise ConfigError(f"--join takes the plan from the sweep that was begun: leave {', '.join(given)} out")


def with_rows(grid: Grid, rows: str | None) -> Grid:
    """The grid with these rows only."""
    if rows is None:
        return grid
    wanted = [row.strip() for row in rows.split(",")]
    for row in wanted:
        if row not in grid.methods:
            raise ConfigError(f"--rows {row!r}{did_you_mean(row, grid.methods)}; there are {', '.join(grid.methods)}")
    return grid.model_copy(update={"methods": {row: grid.methods[row] for row in wanted}})


def sweep_of(asked: Asked, data: Path | None = None) -> tuple[Sweep, str]:
    """The sweep, begun or joined, and the address of its storage."""
    if asked.join is not None:
        asked.check_join()
        url = storage_url(asked.join, Path())
        return Sweep.join(url, asked.name, asked.out), url
    plan = asked.plan
    folder = Path("runs") / f"sweep-{plan.name}" if asked.out is None else asked.out
    url = storage_url(asked.storage, folder)
    return begin_sweep(plan, url, folder, data), url


def shown(asked: Asked, as_json: bool) -> tuple[Any, bool, str]:
    if asked.join is not None:
        raise ConfigError("--show tells what a GRID would train; a sweep that is joined was shown where it was begun")
    plan = asked.plan
    lines, record = [], {}
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
    return record, as_json, "\n".join(lines)


def swept(begun: tuple[Sweep, str], workers: int | None, data: Path | None, retry: bool, quiet: bool) -> Outcome:
    sweep, url = begun
    tell = (lambda text: None) if quiet else say
    if retry:
        for row in sweep.plan.rows:
            for ledger in (sweep.trials(row), sweep.finals(row)):
                for name in ledger.retry():
                    tell(f"{row} {name}: once more")
    workers = usual_workers() if workers is None else workers
    tell(f"{sweep.plan.name}: {counted(workers, 'worker')}, {shown_url(url)}, runs in {sweep.folder}")
    found = run_sweep(sweep, url, workers, data, tell)
    return Outcome(found, text_of(found, sweep.folder))


def text_of(found: Mapping[str, Any], folder: Path) -> str:
    over = "of one seed" if found["seeds"] == 1 else f"mean ± standard deviation over {found['seeds']} seeds"
    lines = [
        f"{found['sweep']}: {found['kind']} masked, nothing retrained; test figures in %, {over},\n"
        "of the ONE configuration per row that has the best mean validation figure over all ratios",
        results_table(found).text(),
        "the same networks with what is removed really removed (in residual networks that is more), and refitted in closed form:",
        results_table(found, "removed_refit").text(),
    ]
    for name, row in found["rows"].items():
        if row.get("test") and len(row["test"]["seeds"]) < found["seeds"]:
            lines.append(f"{name}: over {len(row['test']['seeds'])} of {found['seeds']} seeds only")
    if any(row.get("edges") for row in found["rows"].values()):
        lines.append("*: the smallest or largest value that was tried; a wider grid might do better")
    for name, row in found["rows"].items():
        lines += [f"failed: {name} {job}: {error}" for job, error in row["failed"].items()]
    if any(row["failed"] for row in found["rows"].values()):
        lines.append("what failed has an error.txt in its folder; the same command with --retry tries it again")
    return "\n".join([*lines, f"{folder}: next, `sparsefw report {folder} -o {folder}/report.html`"])


def results_table(found: Mapping[str, Any], figures: str = "plain") -> Table:
    """Methods x ratios, as in the paper. figures: "plain", masked; or "removed_refit"."""
    header = ("", "dense", *(f"{100 * ratio:g} %" for ratio in found["at"]), "chosen", "of")
    rows = []
    for name, row in found["rows"].items():
        test = row.get("test")
        cells = [in_figures(one) for one in (test["dense"], *test[figures])] if test else ["-"] * (len(found["at"]) + 1)
        rows.append(
            (name, *cells, in_words(row.get("settings") or {}, row.get("edges") or ()), str(row["configurations"]))
        )
    return Table((), header, tuple(rows))
