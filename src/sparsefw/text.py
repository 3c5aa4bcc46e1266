"""Small pieces of text for messages: suggestions, counts, the first line of a long error."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


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


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message: those of torch can fill pages."""
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__
