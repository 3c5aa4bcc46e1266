"""sparsefw retrain"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparsefw.cli import options
from sparsefw.cli.output import print_outcome, verb


@verb
def retrain(
    run: options.RunArgument,
    weights: Annotated[float, typer.Option(help="Fraction of the weights to set to 0.")],
    epochs: Annotated[int, typer.Option(help="Epochs of each phase.")],
    schedule: Annotated[str, typer.Option(help="Learning-rate schedule: ft, lrw, slr, clr or llr.")] = "llr",
    phases: Annotated[int, typer.Option(help="How often to prune and retrain; 1: one-shot pruning.")] = 1,
    weight_decay: Annotated[
        float | None, typer.Option(help="Weight decay of the retraining. Default: the run's.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder to write. Default: RUN-retrained.")] = None,
    data: options.RunDataOption = None,
    trust: options.TrustOption = False,
    data_changed: options.DataChangedOption = False,
    json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Remove the smallest weights and train again: the classic alternative, to compare with.

    If it is interrupted or killed, the same command continues it.

    Examples:

        sparsefw retrain runs/cifar10-resnet18-sgd-seed0 --weights 0.95 --epochs 10
        sparsefw retrain RUN --weights 0.95 --epochs 10 --phases 3 --schedule lrw
    """
    from sparsefw.cli.train_run import retrain_run

    folder = run.with_name(f"{run.name}-retrained") if out is None else out
    outcome = retrain_run(
        run,
        folder,
        epochs,
        schedule,
        weights=weights,
        phases=phases,
        weight_decay=weight_decay,
        data=data,
        trust=trust,
        data_changed=data_changed,
        quiet=quiet,
    )
    print_outcome(outcome, json)
