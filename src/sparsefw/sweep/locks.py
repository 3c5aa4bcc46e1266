"""Workers and their lock files, which show other processes of the same machine whether a worker is alive."""

from __future__ import annotations

import fcntl
import os
import socket
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from sparsefw.sweep.files import WORKERS_FOLDER


class Worker(NamedTuple):
    """A process that runs jobs: its unique name, its machine, and the file that it keeps locked while it lives."""

    name: str
    host: str
    lock: Path

    @property
    def record(self) -> dict[str, str]:
        return {"name": self.name, "host": self.host, "lock": str(self.lock)}


@contextmanager
def registered_worker(folder: Path) -> Iterator[Worker]:
    """Register this process as a worker, with a lock file in the folder of the sweep."""
    name = uuid.uuid4().hex[:12]
    lock = folder.resolve() / WORKERS_FOLDER / f"{name}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield Worker(name, socket.gethostname(), lock)
        finally:
            lock.unlink(missing_ok=True)


def reap_if_dead(holder: Mapping[str, str]) -> bool:
    """Return whether a worker of this machine is dead, which is so if nobody holds its lock; then delete its lock file.

    Locks of other machines are not tested, because not every file system shares locks: their workers count as alive.
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
