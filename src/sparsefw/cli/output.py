"""How every verb ends: its outcome as text or JSON, its errors in one line, its exit code."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import typer

from sparsefw.atomic_io import json_ready
from sparsefw.errors import Diverged, Interrupted, disk_error
from sparsefw.own_code import search_current_folder
from sparsefw.text import print_status

F = TypeVar("F", bound=Callable[..., Any])
# Exit codes.
FAILED = 1
BAD_INPUT = 2
INTERRUPTED = 130


class Outcome(NamedTuple):
    """The outcome of a verb: a record for machines, a text for people; failed: the verb ends with exit code 1."""

    record: Any
    text: str
    failed: bool = False


def verb(body: F) -> F:
    """Turn a function into a command.

    An exception ends in one line and an exit code: 2 for bad input, 1 for a failure (such as a full disk), 130 for an
    interrupt. If the environment variable SPARSEFW_TRACEBACK is set, the traceback is shown instead.
    """

    @functools.wraps(body)
    def command(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("trust"):
            search_current_folder()  # the user's own networks and methods may be there
        try:
            return body(*args, **kwargs)
        except (Interrupted, KeyboardInterrupt) as stopped:
            print_status(str(stopped) or "interrupted")
            raise typer.Exit(INTERRUPTED) from None
        except (typer.Exit, typer.Abort):
            raise
        except Exception as error:
            if os.environ.get("SPARSEFW_TRACEBACK"):
                raise
            bad_input = isinstance(error, ValueError) and disk_error(error) is None
            print_status(f"{'error' if bad_input else 'failed'}: {_one_line(error)}")
            raise typer.Exit(BAD_INPUT if bad_input else FAILED) from None

    return command  # type: ignore[return-value]


def _one_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    text = str(error).strip() or type(error).__name__
    if isinstance(error, (ValueError, OSError, Diverged, MemoryError)):
        return text.replace("\n", " ")
    return f"{type(error).__name__}: {text.splitlines()[0]} (SPARSEFW_TRACEBACK=1 shows where)"


def is_first_process() -> bool:
    """Return whether this is the only process, or the first of those that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


def print_outcome(outcome: Outcome, as_json: bool) -> None:
    """Print the outcome of a verb, as JSON or as text, in the first process only; exit with code 1 if the verb failed."""
    if is_first_process():
        _print(json.dumps(json_ready(outcome.record), indent=1) if as_json else outcome.text)
    if outcome.failed:
        raise typer.Exit(FAILED)


def _print(text: str) -> None:
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # The reader, such as `head`, has ended. Without this, Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
