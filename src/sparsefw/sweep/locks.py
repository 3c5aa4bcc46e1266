"""Who does jobs, and whether they are alive: a lock file that a process holds as long as it lives."""

from __future__ import annotations

import fcntl
import os
import socket
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple


class Worker(NamedTuple):
    """Who does jobs: a name that nobody else has, where, and the file it keeps locked while it lives."""

    name: str
    host: str
    lock: Path

    @property
    def record(self) -> dict[str, str]:
        return {"name": self.name, "host": self.host, "lock": str(self.lock)}


@contextmanager
def working(folder: Path) -> Iterator[Worker]:
    """A worker of this process, whose lock file lies in the folder `workers` of the sweep."""
    name = uuid.uuid4().hex[:12]
    lock = folder.resolve() / "workers" / f"{name}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield Worker(name, socket.gethostname(), lock)
        finally:
            lock.unlink(missing_ok=True)


def is_dead(holder: Mapping[str, str]) -> bool:
    """Whether its lock file lies here and nobody holds it. False where that cannot be known.

    Locks of other machines are not looked at: not every file system tells them.
    """
    if holder.get("host") != socket.gethostname():
        return False
    try:
        with open(holder["lock"]) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(holder["lock"])
            return True
    except OSError:
        return False
