"""Arguments and options that several verbs share, and how their values are parsed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparsefw.recovery_words import AUTO, SYNTHETIC

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder that `sparsefw train` wrote.")]
NetworkArgument = Annotated[
    str,
    typer.Argument(
        metavar="NETWORK",
        help="A run folder that `sparsefw train` wrote; or a network that was trained elsewhere: a name such as timm:resnet18, "
        "with --checkpoint, or a folder that `save`, or save_pretrained of transformers, wrote.",
    ),
]
CheckpointOption = Annotated[
    Path | None,
    typer.Option(
        "--checkpoint", metavar="FILE", help="Trained weights of a network given by name: .safetensors, .pt or .pth."
    ),
]
ArgumentOption = Annotated[
    list[str] | None,
    typer.Option(
        "--argument", metavar="KEY=VALUE", help="Of a network given by name, such as num_classes=10. Can be repeated."
    ),
]
EvaluateOption = Annotated[
    Path | None,
    typer.Option(
        "--evaluate",
        metavar="FOLDER",
        help="Images with labels, in a folder per class, on which a network that is no run is evaluated. For --target drop=, "
        "half of them choose the size, the others report.",
    ),
]
ImageSizeOption = Annotated[
    str | None,
    typer.Option(
        "--image-size", help="Of images in folders: 224, or 360,480. Default: as the network's library has it."
    ),
]
MeanOption = Annotated[
    str | None, typer.Option("--mean", help="Of pixels from 0 to 1, for each channel. Default: as the library has it.")
]
StdOption = Annotated[
    str | None, typer.Option("--std", help="Of pixels from 0 to 1, for each channel. Default: as the library has it.")
]
ImagesOption = Annotated[
    int | None, typer.Option("--images", help="At most so many images of a folder calibrate. Default: 1024.")
]
DataOption = Annotated[
    Path | None,
    typer.Option("--data", help="Folder with the files of the data set. Default: $SPARSEFW_DATA.", show_default=False),
]
RunDataOption = Annotated[
    Path | None,
    typer.Option(
        "--data", help="Folder with the files of the data set. Default: the one of the training.", show_default=False
    ),
]
DataChangedOption = Annotated[
    bool,
    typer.Option(
        "--data-changed",
        help="Go on although the data are not those that the run began with, and record that in the run.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON to standard output.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, such as train.epochs=5. Can be repeated."),
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda, or a GPU such as cuda:1.")]
TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Import Python code that the configuration names (module:Attribute) as its network or method, which runs it.",
    ),
]
ShowOption = Annotated[bool, typer.Option("--show", help="Print what would be trained, and stop.")]
WorkersOption = Annotated[
    int | None, typer.Option(help="Processes that train at the same time. Default: one per GPU, or one per core.")
]
StorageOption = Annotated[
    str | None,
    typer.Option(
        help="Database of the sweep: postgresql://USER@HOST/DATABASE for several machines. Default: a file in the folder."
    ),
]
ScoreOption = Annotated[
    str, typer.Option(help="How filters are ranked, the smallest removed first: l1, l2, bn or activation.")
]
AllocationOption = Annotated[
    str | None,
    typer.Option(
        help="How the removal is spread over the layers: uniform, global, energy, worst or sensitivity. "
        "Default: the one of the kind."
    ),
]
CalibrationOption = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBER|FOLDER",
        help="Inputs, used without labels, that calibrate the network. Of a run: the number of its training images (default: the "
        "recipe's). Otherwise: a folder of images, a .npy or .safetensors file of inputs, or the word synthetic: inputs made "
        "from the statistics of batch norms.",
    ),
]
RefitOption = Annotated[
    str,
    typer.Option(
        help="Fit the remaining weights to the whole network, in closed form: yes, no, or auto, whichever follows its outputs "
        "better on calibration images that are held out from the fit."
    ),
]
REFITS: dict[str, bool | str] = {AUTO: AUTO, "yes": True, "no": False}


def parse_refit(text: str) -> bool | str:
    """Return the setting for a value of --refit.

    >>> parse_refit("yes"), parse_refit("auto")
    (True, 'auto')
    """
    if text not in REFITS:
        raise ValueError(f"--refit {text!r}: must be {', '.join(REFITS)}")
    return REFITS[text]


def parse_calibration(text: str | None) -> int | str | Path | None:
    """Return a number of images, the word for synthetic inputs, or the path of images.

    >>> parse_calibration("512"), parse_calibration("synthetic"), str(parse_calibration("photos"))
    (512, 'synthetic', 'photos')
    """
    if text is None or text == SYNTHETIC:
        return text
    try:
        return int(text)
    except ValueError:
        return Path(text)


def parse_numbers(text: str | None, option: str, example: str = "0.5,0.7,0.9") -> list[float] | None:
    """Parse comma-separated numbers, such as "0.5,0.7".

    >>> parse_numbers("0.5,0.7", "--at")
    [0.5, 0.7]
    """
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{option} {text!r}: must be numbers separated by commas, such as {example}") from None


def parse_number(text: str, option: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{option} {text!r}: must be a number, such as 0.9") from None


def check_at_least_one(**options: int | None) -> None:
    """Refuse a count below 1; None means that the option was not given."""
    for name, value in options.items():
        if value is not None and value < 1:
            raise ValueError(f"--{name} {value}: must be at least 1")
