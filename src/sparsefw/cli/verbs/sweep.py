"""sparsefw sweep"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparsefw.cli import options
from sparsefw.cli.output import print_outcome, verb


@verb
def sweep(
    grid: Annotated[
        str | None, typer.Argument(help="A grid of `sparsefw list grids`, or a .yaml file.", show_default=False)
    ] = None,
    join: Annotated[
        str | None,
        typer.Option(metavar="STORAGE", help="Help with a sweep that was begun elsewhere, instead of a GRID."),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Seeds of the chosen configuration of every row. Default: 3.")
    ] = None,
    workers: options.WorkersOption = None,
    rows: Annotated[str | None, typer.Option(help="Run only these rows of the grid, such as SparseFW,SSL.")] = None,
    storage: options.StorageOption = None,
    name: Annotated[str | None, typer.Option(help="Name of the sweep in its storage. Default: the grid's.")] = None,
    sampler: Annotated[
        str | None,
        typer.Option(help="grid (all configurations), random or tpe (--trials of them per row). Default: grid."),
    ] = None,
    trials: Annotated[int | None, typer.Option(help="Configurations per row, for random and tpe.")] = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="Stop a training early if others were better at the same epoch.")
    ] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Also try again what failed before.")] = False,
    grace: Annotated[
        float | None, typer.Option(help="Seconds without a sign of life after which a worker is replaced. Default: 60.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder to write. Default: runs/sweep-NAME.")] = None,
    data: options.DataOption = None,
    set_: options.SetOption = None,
    trust: options.TrustOption = False,
    show: options.ShowOption = False,
    json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Train every configuration of a grid, choose one per row on validation images, and report it on test images.

    If it is interrupted or killed, the same command continues it. Any number of machines can help.

    Examples:

        sparsefw sweep filters-digits
        sparsefw sweep rank-cifar10 --data DIR --storage postgresql://me@server/sweeps
        sparsefw sweep --join postgresql://me@server/sweeps --data DIR
    """
    from sparsefw.cli.sweep_request import SweepRequest, run_requested_sweep, show_trainings

    options.check_at_least_one(seeds=seeds, workers=workers)
    request = SweepRequest(
        grid=grid,
        join=join,
        storage=storage,
        name=name,
        out=out,
        rows=rows,
        changes=set_ or [],
        seeds=seeds,
        sampler=sampler,
        trials=trials,
        prune=prune,
        grace=grace,
        trust=trust,
    )
    outcome = show_trainings(request) if show else run_requested_sweep(request, workers, data, retry, quiet)
    print_outcome(outcome, json)
