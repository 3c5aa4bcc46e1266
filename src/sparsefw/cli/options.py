"""Arguments and options that several verbs share, and how their words are read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder that `sparsefw train` made.")]
DataOption = Annotated[
    Path | None,
    typer.Option("--data", help="Folder with the data set's files; default: $SPARSEFW_DATA.", show_default=False),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object to standard output.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, such as train.epochs=5.")
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda, or cuda:1.")]
TrustOption = Annotated[bool, typer.Option("--trust", help="Import the code that a run's own network is made by.")]
ShowOption = Annotated[bool, typer.Option("--show", help="Print what would be trained, and stop.")]
WorkersOption = Annotated[int | None, typer.Option(help="Default: one per GPU, or one per core.")]
ScoreOption = Annotated[str, typer.Option(help="Which filters go first: l1, l2, bn, activation.")]
AllocationOption = Annotated[str | None, typer.Option(help="uniform, global, energy, worst, sensitivity.")]
CalibrationOption = Annotated[int | None, typer.Option(help="Training images, without labels, for recovery.")]


def parse_numbers(text: str | None, option: str) -> list[float] | None:
    """Turn "0.5,0.7" into numbers."""
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{option} {text!r}: must be numbers with commas between, such as 0.5,0.7,0.9") from None


def parse_number(text: str, option: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{option} {text!r}: must be a number, such as 0.9") from None


def check_at_least_one(**options: int | None) -> None:
    """Refuse a count below 1; None is what was not given."""
    for name, value in options.items():
        if value is not None and value < 1:
            raise ValueError(f"--{name} {value}: at least one")
