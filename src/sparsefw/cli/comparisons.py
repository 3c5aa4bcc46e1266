"""sparsefw sweep, sparsefw reproduce: verb -> function."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparsefw.cli.output import FAILED, DataOption, JsonOption, QuietOption, SetOption, result, verb

WorkersOption = Annotated[int | None, typer.Option(help="Default: one per GPU, or one per core.")]


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
    show: Annotated[bool, typer.Option("--show", help="Print what would be trained, and stop.")] = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Train every configuration of a grid once, choose one per method on validation images, report it on test images.

    Killed or interrupted, the same command goes on. Any number of machines can help.

    sparsefw sweep filters-digits

    sparsefw sweep rank-cifar10 --data DIR --storage postgresql://me@server/sweeps

    sparsefw sweep --join postgresql://me@server/sweeps --data DIR
    """
    from sparsefw.cli.sweeps import Asked, sweep_of, swept

    _check_counts(seeds=seeds, workers=workers)
    asked = Asked(grid, join, storage, name, out, rows, set_ or [], seeds, sampler, trials, prune, grace)
    if show:
        from sparsefw.cli.sweeps import shown

        return result(*shown(asked, json))
    found = swept(sweep_of(asked, data), workers, data, retry, quiet)
    result(found.record, json, found.text)
    if not all(row.get("test") for row in found.record["rows"].values()):
        raise typer.Exit(FAILED)  # a row has nothing to report


@verb
def reproduce(
    table: Annotated[str, typer.Argument(help="A table or figure of the paper, of `sparsefw list experiments`.")],
    quick: Annotated[bool, typer.Option("--quick", help="On digits, in minutes on two CPU cores.")] = False,
    seeds: Annotated[int | None, typer.Option(help="Default: what the table or figure usually has.")] = None,
    workers: WorkersOption = None,
    storage: Annotated[str | None, typer.Option(help="As for sweep, where many machines help.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder; default: runs/reproduce.")] = None,
    data: DataOption = None,
    set_: SetOption = None,
    show: Annotated[bool, typer.Option("--show", help="Print what would be trained, and stop.")] = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """A table or figure of the paper: our figures beside the paper's, and what was done otherwise. Killed, it goes on.

    sparsefw reproduce filters-cifar10 --quick

    sparsefw reproduce rank-cifar10 --data DIR
    """
    from sparsefw.cli.reproduces import plan, setting_of
    from sparsefw.cli.reproduces import reproduce as reproduced

    _check_counts(seeds=seeds, workers=workers)
    setting = setting_of(quick, seeds, data, workers, set_ or [], storage, out, quiet)
    found = plan(table, setting) if show else reproduced(table, setting)
    result(found.record, json, found.text)


def _check_counts(**options: int | None) -> None:
    for name, value in options.items():
        if value is not None and value < 1:
            raise ValueError(f"--{name} {value}: at least one")
