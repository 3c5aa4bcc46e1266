"""The name of code that no file may get imported, and the watch over what runs while a file is read."""

from __future__ import annotations

import contextlib
import faulthandler
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

MODULE = "fuzz.imported_by_a_file"
CODE = f"{MODULE}:Anything"
HANG = 60  # seconds; no single file takes one
# What Python announces before it runs something else, or connects.
_RUNS = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "subprocess.Popen", "socket.connect", "pty.spawn")
_seen: list[str] = []
_watching = threading.local()


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if getattr(_watching, "on", False) and event.startswith(_RUNS):
        _seen.append(f"{event}{arguments!r:.200}")


sys.addaudithook(_hook)


class Hanging(BaseException):
    """A file that is read for ever; not an Exception, which some readers take for damage."""


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """A block in which nothing may be imported by name, run or connected to, and which must end."""

    def give_up(number: int, frame: FrameType | None) -> None:
        raise Hanging

    _seen.clear()
    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(HANG)
    faulthandler.dump_traceback_later(2 * HANG, exit=True)  # code in C may not let Python handle the signal
    _watching.on = True
    try:
        yield
    finally:
        _watching.on = False
        signal.alarm(0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)
    assert not _seen, _seen
    assert MODULE not in sys.modules
