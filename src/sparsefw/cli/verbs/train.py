"""sparsefw train"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparsefw.cli.options import DataOption, JsonOption, QuietOption, SetOption
from sparsefw.cli.output import is_first_process, print_result, verb


@verb
def train(
    recipe: Annotated[str, typer.Argument(help="A recipe of `sparsefw list recipes`, or a .yaml file.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Run folder; default: runs/RECIPE-seedN.")] = None,
    data: DataOption = None,
    seed: Annotated[int | None, typer.Option(help="Default: the recipe's.")] = None,
    set_: SetOption = None,
    show: Annotated[bool, typer.Option("--show", help="Print the whole configuration, and stop.")] = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Train a network once. Killed or interrupted, the same command goes on where it was.

    Writes a picture of the training into the run folder, and warns where it goes wrong.

    sparsefw train digits-resnet-filters

    sparsefw train cifar10-resnet18-filters --data DIR --set train.epochs=20 --set method.k=0.3

    torchrun --nproc-per-node 4 -m sparsefw train imagenet-resnet50-rank --data DIR
    """
    from sparsefw.cli.run_texts import training_text
    from sparsefw.report import read_run, run_figure, save_figure
    from sparsefw.train import fit, load_recipe
    from sparsefw.train.recipes import write_config

    config = load_recipe(recipe, set_ or (), seed=seed)
    if show:
        return print_result(config.plain(), json, write_config(config).rstrip())
    folder = Path("runs") / f"{config.name}-seed{config.seed}" if out is None else out
    found = fit(config, folder, data, quiet=quiet)
    if is_first_process():
        picture, _ = save_figure(run_figure(read_run(folder)), folder / "training")
        text = training_text(config, folder, found, picture)
        print_result({"run": folder, **found, "picture": picture}, json, text)
    return None
