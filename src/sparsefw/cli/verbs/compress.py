"""sparsefw compress"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparsefw.cli import options
from sparsefw.cli.kind_options import parse_amounts, with_option_per_kind
from sparsefw.cli.output import print_outcome, verb
from sparsefw.kind_words import KIND_WORDS
from sparsefw.recovery_words import AUTO


@verb
@with_option_per_kind
def compress(
    network: options.NetworkArgument,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder to write. Default for runs: RUN/small.")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="Size to reach instead of a fraction: params=0.3, macs=0.3, bytes=0.3 or latency=0.5 of the dense network; "
            "params=30k, macs=1M, bytes=100kB, latency=2ms; or drop=1pt (points of accuracy), drop=1% (of the accuracy)."
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(help=f"Kinds by which the target is reached, separated by commas: {', '.join(KIND_WORDS)}."),
    ] = None,
    score: options.ScoreOption = "l1",
    allocation: options.AllocationOption = None,
    round_to: Annotated[int, typer.Option(help="Make channel counts and ranks multiples of this number.")] = 1,
    refit: options.RefitOption = AUTO,
    calibration: options.CalibrationOption = None,
    images: options.ImagesOption = None,
    checkpoint: options.CheckpointOption = None,
    argument: options.ArgumentOption = None,
    evaluate: options.EvaluateOption = None,
    image_size: options.ImageSizeOption = None,
    mean: options.MeanOption = None,
    std: options.StdOption = None,
    onnx: Annotated[bool, typer.Option("--onnx", help="Also write model.onnx.")] = False,
    program: Annotated[
        bool,
        typer.Option(
            "--program",
            help="Also write model.pt2, a torch.export program. torch may unpickle what is in such a file: load one only where "
            "you trust its origin.",
        ),
    ] = False,
    openvino: Annotated[
        bool, typer.Option("--openvino", help="Also write model.xml and model.bin for OpenVINO.")
    ] = False,
    executorch: Annotated[bool, typer.Option("--executorch", help="Also write model.pte for ExecuTorch.")] = False,
    int8: Annotated[
        bool,
        typer.Option(
            "--int8",
            help="Also write the network in int8: model.int8.onnx, or with --executorch model.int8.pte; with --onnx or "
            "--openvino besides, both.",
        ),
    ] = False,
    data: options.RunDataOption = None,
    data_changed: options.DataChangedOption = False,
    device: options.DeviceOption = "auto",
    trust: options.TrustOption = False,
    json: options.JsonOption = False,
    quiet: options.QuietOption = False,
    **removed: str | None,
) -> None:
    """Make a physically smaller network from a trained one, and save it without pickle.

    Give the fraction to remove of one kind or several, or a target. The network is that of a run, or one that was trained
    elsewhere (docs/trained.md): then give images to calibrate on.

    Examples:

        sparsefw compress RUN --filters 0.7 -o small --onnx
        sparsefw compress RUN --target drop=1pt --by filters
        sparsefw compress RUN --filters 0.7 --openvino --executorch --int8
        sparsefw compress timm:resnet18 --checkpoint model.safetensors --calibration photos --filters 0.5 -o small
    """
    from sparsefw.cli.compress_run import compress_run
    from sparsefw.cli.subjects import NetworkOptions, RunOptions, open_subject, small_folder
    from sparsefw.compression.target import is_drop

    settings = dict(
        target=target,
        by=None if by is None else by.split(","),
        score=score,
        allocation=allocation,
        refit=options.parse_refit(refit),
        round_to=round_to,
        calibration=options.parse_calibration(calibration),
        progress=False if quiet else None,
        **parse_amounts(removed, target),
    )
    formats = {"onnx": onnx, "program": program, "openvino": openvino, "executorch": executorch}
    wanted = [option for option, is_wanted in formats.items() if is_wanted]
    folder = small_folder(network, out)
    given = NetworkOptions(checkpoint, argument, evaluate, image_size, mean, std, images)
    subject = open_subject(network, given, RunOptions(data, data_changed), device, trust, halves=is_drop(target))
    print_outcome(compress_run(subject, folder, wanted, int8, settings), json)
