"""What every verb has in common: one line for what is wrong, exit codes, JSON for machines."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from sparsefw.durable import strict
from sparsefw.words import Diverged, Interrupted

F = TypeVar("F", bound=Callable[..., Any])
FAILED, USAGE, INTERRUPTED = 1, 2, 130

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


def verb(body: F) -> F:
    """A command: bad input ends in one line and exit code 2, a failure in one line and exit code 1, an interrupt in 130.

    With SPARSEFW_TRACEBACK=1 in the environment the traceback is shown instead.
    """

    @functools.wraps(body)
    def command(*args: Any, **kwargs: Any) -> Any:
        # As with `python -m`: networks of the user's own are found in the current folder.
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())
        try:
            return body(*args, **kwargs)
        except (Interrupted, KeyboardInterrupt) as stopped:
            say(str(stopped) or "interrupted")
            raise typer.Exit(INTERRUPTED) from None
        except (typer.Exit, typer.Abort):
            raise
        except Exception as error:
            if os.environ.get("SPARSEFW_TRACEBACK"):
                raise
            bad_input = isinstance(error, ValueError)
            say(f"{'error' if bad_input else 'failed'}: {_line(error)}")
            raise typer.Exit(USAGE if bad_input else FAILED) from None

    return command  # type: ignore[return-value]


def _line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    if isinstance(error, (ValueError, OSError, Diverged)):
        return text.replace("\n", " ")
    return f"{type(error).__name__}: {text.splitlines()[0]} (SPARSEFW_TRACEBACK=1 shows where)"


def say(text: str) -> None:
    """To the user; standard output is for results."""
    print(text, file=sys.stderr, flush=True)


def is_first() -> bool:
    """Whether this is the only process, or the first of those that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


def result(data: Any, as_json: bool, text: str) -> None:
    """The result of a verb on standard output: for machines, or for people; of several processes, the first one's."""
    if not is_first():
        return
    try:
        print(json.dumps(strict(data), indent=1) if as_json else text, flush=True)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough; Python would complain once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def numbers(text: str | None, name: str) -> list[float] | None:
    """ "0.5,0.7" as numbers."""
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{name} {text!r}: must be numbers with commas between, such as 0.5,0.7,0.9") from None


def number(text: str, name: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{name} {text!r}: must be a number, such as 0.9") from None
