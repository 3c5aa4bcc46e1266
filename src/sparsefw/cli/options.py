"""Arguments and options that several verbs share, and how their values are parsed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparsefw.recovery_words import AUTO

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder that `sparsefw train` wrote.")]
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
    int | None,
    typer.Option(
        help="Number of training images, used without labels, that calibrate the network. Default: the recipe's."
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


def parse_numbers(text: str | None, option: str) -> list[float] | None:
    """Parse comma-separated numbers, such as "0.5,0.7".

    >>> parse_numbers("0.5,0.7", "--at")
    [0.5, 0.7]
    """
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{option} {text!r}: must be numbers separated by commas, such as 0.5,0.7,0.9") from None


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
