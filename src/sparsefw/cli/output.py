"""What every verb has in common: one line for what is wrong, exit codes, JSON for machines."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import typer

from sparsefw.atomic_io import strict
from sparsefw.errors import Diverged, Interrupted

F = TypeVar("F", bound=Callable[..., Any])
FAILED = 1
USAGE = 2
INTERRUPTED = 130


class Outcome(NamedTuple):
    """What came of a verb: a record for machines, a text for people."""

    record: dict[str, Any]
    text: str


def verb(body: F) -> F:
    """Make a command: bad input ends in one line and exit code 2, a failure in one line and exit code 1, an interrupt in 130.

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
            say(f"{'error' if bad_input else 'failed'}: {_one_line(error)}")
            raise typer.Exit(USAGE if bad_input else FAILED) from None

    return command  # type: ignore[return-value]


def _one_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    if isinstance(error, (ValueError, OSError, Diverged)):
        return text.replace("\n", " ")
    return f"{type(error).__name__}: {text.splitlines()[0]} (SPARSEFW_TRACEBACK=1 shows where)"


def say(text: str) -> None:
    """Tell the user something; standard output is for results."""
    print(text, file=sys.stderr, flush=True)


def is_first_process() -> bool:
    """Tell whether this is the only process, or the first of those that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


def print_result(record: Any, as_json: bool, text: str) -> None:
    """Print what came of a verb, for machines or for people; of several processes, only the first one does."""
    if not is_first_process():
        return
    try:
        print(json.dumps(strict(record), indent=1) if as_json else text, flush=True)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough; Python would complain once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
