"""sparsefw reproduce"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparsefw.cli import options
from sparsefw.cli.output import print_outcome, verb


@verb
def reproduce(
    experiment: Annotated[str, typer.Argument(help="A table or figure of the paper, of `sparsefw list experiments`.")],
    quick: Annotated[
        bool, typer.Option("--quick", help="Scale it down to handwritten digits: minutes on two CPU cores.")
    ] = False,
    seeds: Annotated[
        int | None, typer.Option(help="Seeds of the reported configurations. Default: the experiment's.")
    ] = None,
    workers: options.WorkersOption = None,
    storage: options.StorageOption = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder to write. Default: runs/reproduce.")] = None,
    data: options.DataOption = None,
    set_: options.SetOption = None,
    trust: options.TrustOption = False,
    show: options.ShowOption = False,
    json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Reproduce a table or figure of the paper, with our figures beside the paper's and all deviations listed.

    If it is interrupted or killed, the same command continues it.

    Examples:

        sparsefw reproduce filters-cifar10 --quick
        sparsefw reproduce rank-cifar10 --data DIR
    """
    from sparsefw.cli.reproduction import experiment_options, run_experiment, show_experiment

    options.check_at_least_one(seeds=seeds, workers=workers)
    given = experiment_options(
        quick=quick,
        seeds=seeds,
        data=data,
        workers=workers,
        changes=tuple(set_ or ()),
        storage=storage,
        trust=trust,
        out=out,
        quiet=quiet,
    )
    outcome = show_experiment(experiment, given) if show else run_experiment(experiment, given)
    print_outcome(outcome, json)
