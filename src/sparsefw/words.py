"""Words, in one place: what was perhaps meant, the first line of what others say, and what is no error at all."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class Interrupted(Exception):  # noqa: N818  (nothing went wrong)
    """The user or the system asked to stop; a checkpoint was written."""


class Diverged(Exception):  # noqa: N818  (nothing is wrong with the program)
    """A training whose numbers grew beyond all bounds."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """ "; did you mean 'filters'?", or nothing where nothing is close."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.4)
    return f"; did you mean {close[0]!r}?" if close else ""


def counted(number: int, what: str) -> str:
    """ "1 worker", "2 workers"."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def first_line(error: BaseException) -> str:
    """Errors of torch and others fill pages."""
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__
