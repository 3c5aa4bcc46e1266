"""sparsefw reproduce"""

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
from sparsefw.cli.output import print_result, verb


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
    show: ShowOption = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """A table or figure of the paper: our figures beside the paper's, and what was done otherwise. Killed, it goes on.

    sparsefw reproduce filters-cifar10 --quick

    sparsefw reproduce rank-cifar10 --data DIR
    """
    from sparsefw.cli.reproduction import experiment_setting, plan_experiment, run_experiment

    check_at_least_one(seeds=seeds, workers=workers)
    setting = experiment_setting(quick, seeds, data, workers, set_ or [], storage, out, quiet)
    found = plan_experiment(table, setting) if show else run_experiment(table, setting)
    print_result(found.record, json, found.text)
