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
    network: options.NetworkArgument,
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
    images: options.ImagesOption = None,
    checkpoint: options.CheckpointOption = None,
    argument: options.ArgumentOption = None,
    evaluate: options.EvaluateOption = None,
    image_size: options.ImageSizeOption = None,
    mean: options.MeanOption = None,
    std: options.StdOption = None,
    latency: Annotated[bool, typer.Option("--latency", help="Also measure milliseconds per call.")] = False,
    data: options.RunDataOption = None,
    data_changed: options.DataChangedOption = False,
    device: options.DeviceOption = "auto",
    trust: options.TrustOption = False,
    json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Measure accuracy against size, from one trained network, without retraining.

    Of a run, writes the table and, for the test images, a picture into its folder. A network that was trained elsewhere
    (docs/trained.md) needs images to calibrate on, and images with labels to evaluate on.

    Examples:

        sparsefw curve runs/digits-resnet-filters-seed0
        sparsefw curve RUN --kind rank --at 0.6,0.8,0.9 --latency
        sparsefw curve timm:resnet18 --checkpoint model.safetensors --calibration photos --evaluate labelled
    """
    from sparsefw.cli.curve_run import curve_run
    from sparsefw.cli.subjects import NetworkOptions, RunOptions, open_subject

    settings = dict(
        score=score,
        allocation=allocation,
        refit=options.parse_refit(refit),
        calibration=options.parse_calibration(calibration),
        latency=latency,
        progress=False if quiet else None,
    )
    ratios = options.parse_numbers(at, "--at")
    given = NetworkOptions(checkpoint, argument, evaluate, image_size, mean, std, images)
    subject = open_subject(network, given, RunOptions(data, data_changed), device, trust, halves=split == "validation")
    print_outcome(curve_run(subject, kind, ratios, form, split, settings), json)
