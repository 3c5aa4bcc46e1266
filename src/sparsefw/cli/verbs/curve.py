"""sparsefw curve"""

from __future__ import annotations

from typing import Annotated

import typer

from sparsefw.cli import options
from sparsefw.cli.output import print_outcome, verb
from sparsefw.kind_words import KIND_WORDS
from sparsefw.recovery_words import AUTO


@verb
def curve(
    run: options.RunArgument,
    kind: Annotated[
        str | None, typer.Option(help=f"{', '.join(KIND_WORDS)}, or N:M such as 2:4. Default: the recipe's.")
    ] = None,
    at: Annotated[
        str | None, typer.Option(help="Fractions to remove, such as 0.5,0.7,0.9. Default: the recipe's.")
    ] = None,
    form: Annotated[
        str, typer.Option(help="removed (physically smaller) or masked (set to zero, as in the paper).")
    ] = "removed",
    split: Annotated[str, typer.Option(help="Images to evaluate on: test or validation.")] = "test",
    score: options.ScoreOption = "l1",
    allocation: options.AllocationOption = None,
    refit: options.RefitOption = AUTO,
    calibration: options.CalibrationOption = None,
    latency: Annotated[bool, typer.Option("--latency", help="Also measure milliseconds per call.")] = False,
    data: options.RunDataOption = None,
    data_changed: options.DataChangedOption = False,
    device: options.DeviceOption = "auto",
    trust: options.TrustOption = False,
    json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Measure accuracy against size, from one trained network, without retraining.

    Writes the table and, for the test images, a picture into the run folder.

    Examples:

        sparsefw curve runs/digits-resnet-filters-seed0
        sparsefw curve RUN --kind rank --at 0.6,0.8,0.9 --latency
    """
    from sparsefw.cli.curve_run import curve_run
    from sparsefw.train.evaluate_run import TrainedRun

    settings = dict(score=score, allocation=allocation, refit=options.parse_refit(refit), calibration=calibration)
    settings |= dict(latency=latency, progress=False if quiet else None)
    trained = TrainedRun.open(run, data, device, trust, data_changed)
    print_outcome(curve_run(trained, run, kind, options.parse_numbers(at, "--at"), form, split, settings), json)
