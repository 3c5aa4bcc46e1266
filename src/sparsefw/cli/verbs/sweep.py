"""sparsefw sweep"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparsefw.cli.options import (
    DataOption,
    JsonOption,
    QuietOption,
    SetOption,
    ShowOption,
    WorkersOption,
    check_at_least_one,
)
from sparsefw.cli.output import FAILED, print_result, verb


@verb
def sweep(
    grid: Annotated[
        str | None, typer.Argument(help="A grid of `sparsefw list grids`, or a .yaml file.", show_default=False)
    ] = None,
    join: Annotated[
        str | None, typer.Option(metavar="STORAGE", help="Help with a sweep that was begun elsewhere.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Of the chosen configuration of every row; default: 3.")] = None,
    workers: WorkersOption = None,
    rows: Annotated[str | None, typer.Option(help="Only these rows, such as SparseFW,SSL.")] = None,
    storage: Annotated[
        str | None, typer.Option(help="postgresql://USER@HOST/DATABASE for many machines; default: a file in --out.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Of the sweep in its storage; default: the grid's.")] = None,
    sampler: Annotated[
        str | None, typer.Option(help="grid (all; the default), random or tpe (--trials of them).")
    ] = None,
    trials: Annotated[int | None, typer.Option(help="Configurations per row, for random and tpe.")] = None,
    prune: Annotated[bool, typer.Option("--prune", help="Stop hopeless trainings early.")] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Try configurations that failed before once more.")] = False,
    grace: Annotated[
        float | None, typer.Option(help="Seconds until a silent worker is taken for dead; default: 60.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder; default: runs/sweep-NAME.")] = None,
    data: DataOption = None,
    set_: SetOption = None,
    show: ShowOption = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Train every configuration of a grid once, choose one per method on validation images, report it on test images.

    Killed or interrupted, the same command goes on. Any number of machines can help.

    sparsefw sweep filters-digits

    sparsefw sweep rank-cifar10 --data DIR --storage postgresql://me@server/sweeps

    sparsefw sweep --join postgresql://me@server/sweeps --data DIR
    """
    from sparsefw.cli.requested_sweep import SweepRequest, begin_or_join_sweep, describe_trainings, work_on_sweep
    from sparsefw.cli.sweep_results import results_text

    check_at_least_one(seeds=seeds, workers=workers)
    request = SweepRequest(
        grid=grid, join=join, storage=storage, name=name, out=out, rows=rows, changes=set_ or [], seeds=seeds,
        sampler=sampler, trials=trials, prune=prune, grace=grace,
    )  # fmt: skip
    if show:
        planned = describe_trainings(request)
        return print_result(planned.record, json, planned.text)
    begun, url = begin_or_join_sweep(request, data)
    found = work_on_sweep(begun, url, workers, data, retry, quiet)
    print_result(found, json, results_text(found, begun.folder))
    if not all(row.get("test") for row in found["rows"].values()):
        raise typer.Exit(FAILED)  # a row has nothing to report
    return None
