"""sparsefw retrain"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparsefw.cli.options import DataOption, JsonOption, QuietOption, RunArgument
from sparsefw.cli.output import print_result, verb


@verb
def retrain(
    run: RunArgument,
    weights: Annotated[float, typer.Option(help="Fraction of the weights to set to 0.")],
    epochs: Annotated[int, typer.Option(help="Epochs of each phase.")],
    schedule: Annotated[str, typer.Option(help="ft, lrw, slr, clr or llr.")] = "llr",
    phases: Annotated[int, typer.Option(help="1: one shot; more: prune and retrain that often.")] = 1,
    weight_decay: Annotated[float | None, typer.Option(help="Default: that of the run.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder to write; default: RUN-retrained.")] = None,
    data: DataOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Magnitude pruning with retraining: a rival, which trains again after compression. Killed, the same command goes on.

    sparsefw retrain runs/cifar10-resnet18-sgd-seed0 --weights 0.95 --epochs 10

    sparsefw retrain RUN --weights 0.95 --epochs 10 --phases 3 --schedule lrw
    """
    from sparsefw.cli.run_texts import retraining_text
    from sparsefw.train.retrain import retrain as prune_and_retrain

    found = prune_and_retrain(
        run,
        run.with_name(f"{run.name}-retrained") if out is None else out,
        weights=weights,
        epochs=epochs,
        schedule=schedule,
        phases=phases,
        weight_decay=weight_decay,
        data=data,
        quiet=quiet,
    )
    print_result([phase._asdict() for phase in found], json, retraining_text(found, epochs, schedule))
