"""sparsefw compress"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparsefw.cli.amounts import given_amounts, parse_amounts, with_option_per_kind
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
)
from sparsefw.cli.output import print_result, verb
from sparsefw.kind_words import KIND_WORDS


@verb
@with_option_per_kind
def compress(
    run: RunArgument,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder to write; default: RUN/small.")] = None,
    target: Annotated[
        str | None, typer.Option(help="Instead: params=0.3, macs=0.3, bytes=0.3, latency=0.5, or drop=2 (points).")
    ] = None,
    by: Annotated[
        str | None, typer.Option(help=f"What a target is met by: {', '.join(KIND_WORDS)}, or several.")
    ] = None,
    score: ScoreOption = "l1",
    allocation: AllocationOption = None,
    round_to: Annotated[int, typer.Option(help="Channel counts and ranks in multiples of this.")] = 1,
    calibration: CalibrationOption = None,
    onnx: Annotated[bool, typer.Option("--onnx", help="Also write model.onnx.")] = False,
    data: DataOption = None,
    device: DeviceOption = "auto",
    trust: TrustOption = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
    **removed: str | None,
) -> None:
    """A smaller network from a trained one, physically smaller, saved without pickle.

    sparsefw compress RUN --filters 0.7 -o small --onnx

    sparsefw compress RUN --target drop=1 --by filters
    """
    from sparsefw.cli.compress_run import compress_run
    from sparsefw.train.evaluate_run import Study

    amounts = given_amounts(removed, target)
    study = Study.open(run, data, device, trust)
    how = dict(
        target=target, by=by.split(",") if by else None, score=score, allocation=allocation, round_to=round_to,
        calibration=calibration, progress=False if quiet else None, **parse_amounts(amounts),
    )  # fmt: skip
    found = compress_run(study, run / "small" if out is None else out, onnx, how)
    print_result(found.record, json, found.text)
