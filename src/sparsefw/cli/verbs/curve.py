"""sparsefw curve"""

from __future__ import annotations

from typing import Annotated

import typer

from sparsefw.cli.options import (
    AllocationOption,
    CalibrationOption,
    DataOption,
    DeviceOption,
    JsonOption,
    QuietOption,
    RunArgument,
    ScoreOption,
    TrustOption,
    parse_numbers,
)
from sparsefw.cli.output import print_result, verb
from sparsefw.kind_words import KIND_WORDS


@verb
def curve(
    run: RunArgument,
    kind: Annotated[
        str | None, typer.Option(help=f"{', '.join(KIND_WORDS)} or N:M such as 2:4; default: the recipe's.")
    ] = None,
    at: Annotated[
        str | None, typer.Option(help="Ratios to remove, such as 0.5,0.7,0.9; default: the recipe's.")
    ] = None,
    form: Annotated[
        str, typer.Option(help="removed (physically smaller) or masked (the paper's protocol).")
    ] = "removed",
    split: Annotated[str, typer.Option(help="test or validation.")] = "test",
    score: ScoreOption = "l1",
    allocation: AllocationOption = None,
    calibration: CalibrationOption = None,
    latency: Annotated[bool, typer.Option("--latency", help="Measure milliseconds too.")] = False,
    data: DataOption = None,
    device: DeviceOption = "auto",
    trust: TrustOption = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Accuracy against size, from one trained network, without retraining. Writes a table and a picture into the run folder.

    sparsefw curve runs/digits-resnet-filters-seed0

    sparsefw curve RUN --kind rank --at 0.6,0.8,0.9 --latency
    """
    from sparsefw.cli.run_texts import curve_text
    from sparsefw.report import curves_figure, read_run, save_figure
    from sparsefw.train.evaluate_run import Study

    study = Study.open(run, data, device, trust)
    how = dict(score=score, allocation=allocation, calibration=calibration, latency=latency)
    found = study.curve(kind, parse_numbers(at, "--at"), form, split, progress=False if quiet else None, **how)
    text = curve_text(study, found, form, split)
    if split == "test":
        figure = curves_figure([read_run(run)], found.kind, form)
        picture, _ = save_figure(figure, run / "curves" / f"{found.kind}-{form}")
        text += f"\n{picture}"
    print_result({"run": run, "metric": study.task.metric, "split": split, **found.to_json()}, json, text)
