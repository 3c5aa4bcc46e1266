"""Small pieces of text for messages: suggestions, counts, the text of an error in one line."""

from __future__ import annotations

import difflib
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'filters'?", or nothing if no known word is close.

    >>> did_you_mean("filter", ["filters", "rank"])
    "; did you mean 'filters'?"
    """
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.4)
    return f"; did you mean {close[0]!r}?" if close else ""


def counted(number: int, noun: str) -> str:
    """Return the number with its noun.

    >>> counted(1, "worker"), counted(2, "worker")
    ('1 worker', '2 workers')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def listed(names: Sequence[str], shown: int = 3) -> str:
    """Return the first names, and how many follow.

    >>> listed(["a", "b"]), listed(["a", "b", "c", "d", "e"])
    ('a, b', 'a, b, c and 2 more')
    """
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


def shell_path(path: Path) -> str:
    """Return a path as one types it in a shell, behind any command.

    >>> shell_path(Path("runs/a")), shell_path(Path("my runs/a")), shell_path(Path("-a"))
    ('runs/a', "'my runs/a'", './-a')
    """
    text = str(path)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type where there is none; messages of torch can fill pages.

    >>> first_line(ValueError("shapes differ\\nat ...")), first_line(KeyboardInterrupt())
    ('shapes differ', 'KeyboardInterrupt')
    """
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


def print_status(text: str) -> None:
    """Print a line to standard error; standard output is for results."""
    print(text, file=sys.stderr, flush=True)


def one_line(error: BaseException) -> str:
    """Return the whole message of an error without line breaks, or its type where there is none.

    >>> one_line(ValueError("cut off\\n  at byte 12"))
    'cut off at byte 12'
    """
    return " ".join(str(error).split()) or type(error).__name__


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Return a line per row, with the cells of each column padded to the same width.

    >>> print(text_table([["layer", "k"], ["conv1", "3"]]))
    layer  k
    conv1  3
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)
