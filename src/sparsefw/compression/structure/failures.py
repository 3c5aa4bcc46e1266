"""Failures: what goes wrong in the code of a network that lost channels, and in which line of it, for people to read."""

from __future__ import annotations

import linecache
import traceback

from torch import nn

from sparsefw.text import first_line

_LONGEST = 100  # characters of a message, and of a line of code


def described(error: BaseException) -> str:
    """Return the message of an error, and the line of the network's own code in which it arose, in one line.

    Names of objects that torch alone knows say nothing; the innermost code of a module that is not torch's does.
    """
    message = _shortened(first_line(error))
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        module = frame.f_locals.get("self")
        if isinstance(module, nn.Module) and not frame.f_globals.get("__name__", "").startswith(
            ("torch.", "sparsefw.")
        ):
            code = linecache.getline(frame.f_code.co_filename, line).strip()
            place = f"{type(module).__name__}.{frame.f_code.co_name}"
            return f"{message}, in {place}: {_shortened(code)}" if code else f"{message}, in {place}"
    return message


def _shortened(text: str) -> str:
    """Return the text with an ellipsis for what is beyond the longest."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
