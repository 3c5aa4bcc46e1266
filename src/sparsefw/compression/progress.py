"""Progress: a bar, or a function of the user's, while layers are fitted."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from sparsefw.compression.recovery.calibration import rank_of

Progress = Callable[[int, int, str], None]  # layers done, all layers, the name of the layer that is being fitted


def check_progress(progress: Any) -> None:
    if progress is not None and not callable(progress) and not isinstance(progress, bool):
        raise ValueError(f"progress must be True, False or a function of (done, total, layer name), got {progress!r}")


def shown(progress: Progress | bool | None) -> Progress | None:
    """Return the function to call: a bar for True, and for None if standard error is a terminal; nothing for False."""
    check_progress(progress)
    if callable(progress):
        return progress
    wanted = sys.stderr.isatty() if progress is None else progress
    return Bar(sys.stderr) if wanted and rank_of()[0] == 0 else None


class Bar:
    """One line that is overwritten, and cleared at the end. Work that takes less than a second shows none."""

    def __init__(self, stream: TextIO, width: int = 20, after: float = 1.0) -> None:
        self.stream = stream
        self.width = width
        self.after = after
        self.start = time.monotonic()
        self.written = 0

    def __call__(self, done: int, total: int, name: str) -> None:
        if done >= total:
            self._write("")
        elif time.monotonic() - self.start >= self.after:
            filled = self.width * done // total
            self._write(f"fitting {done}/{total} [{'#' * filled}{'.' * (self.width - filled)}] {name}")

    def _write(self, text: str) -> None:
        text = text[: shutil.get_terminal_size().columns - 1]
        if text or self.written:
            self.stream.write("\r" + text.ljust(self.written) + ("" if text else "\r"))
            self.stream.flush()
        self.written = len(text)
