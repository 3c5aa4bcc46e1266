"""sparsefw train"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparsefw.cli import options
from sparsefw.cli.output import Outcome, print_outcome, verb


@verb
def train(
    recipe: Annotated[str, typer.Argument(help="A recipe of `sparsefw list recipes`, or a .yaml file.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Run folder to write. Default: runs/RECIPE-seedN.")
    ] = None,
    data: options.DataOption = None,
    data_changed: options.DataChangedOption = False,
    seed: Annotated[int | None, typer.Option(help="Seed of the training. Default: the recipe's.")] = None,
    set_: options.SetOption = None,
    trust: options.TrustOption = False,
    show: Annotated[bool, typer.Option("--show", help="Print the whole configuration, and stop.")] = False,
    json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Train a network once.

    If the training is interrupted or killed, the same command continues it. Writes a picture of the training into the run
    folder, and prints a warning if something goes wrong.

    Examples:

        sparsefw train digits-resnet-filters
        sparsefw train cifar10-resnet18-filters --data DIR --set train.epochs=20 --set method.k=0.3
        torchrun --nproc-per-node 4 -m sparsefw train imagenet-resnet50-rank --data DIR
    """
    from sparsefw.cli.train_run import train_run
    from sparsefw.runfolder.schema import ConfigRecord
    from sparsefw.runfolder.write import config_yaml
    from sparsefw.train import load_recipe

    config = load_recipe(recipe, set_ or (), seed=seed)
    if show:
        return print_outcome(Outcome(config.plain(), config_yaml(ConfigRecord(config.plain())).rstrip()), json)
    folder = Path("runs") / f"{config.name}-seed{config.seed}" if out is None else out
    return print_outcome(train_run(config, folder, data, quiet, trust, data_changed), json)
