"""Workers and their lock files, which show other processes of the same machine whether a worker is alive."""

from __future__ import annotations

import fcntl
import re
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from sparsefw.child_processes import keep_from_children
from sparsefw.lock_files import open_lock
from sparsefw.sweep.files import WORKERS_FOLDER

_WORKER_NAME = re.compile(r"[0-9a-f]{12}")


class Worker(NamedTuple):
    """A process that runs jobs: its unique name, and its machine. It keeps its lock file locked while it lives."""

    name: str
    host: str

    @property
    def record(self) -> dict[str, str]:
        return self._asdict()


@contextmanager
def registered_worker(folder: Path) -> Iterator[Worker]:
    """Register this process as a worker, with a lock file in the folder of the sweep."""
    worker = Worker(uuid.uuid4().hex[:12], socket.gethostname())
    lock = lock_file(folder, worker.name)
    lock.parent.mkdir(parents=True, exist_ok=True)
    with open_lock(lock) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        keep_from_children(file)
        try:
            yield worker
        finally:
            lock.unlink(missing_ok=True)


def lock_file(folder: Path, name: str) -> Path:
    """Return the lock file of a worker of the sweep in `folder`."""
    return folder.resolve() / WORKERS_FOLDER / f"{name}.lock"


def reap_if_dead(holder: Any, folder: Path) -> bool:
    """Return whether a worker of this machine is dead, which is so if nobody holds its lock; then delete its lock file.

    Locks of other machines are not tested, because not every file system shares locks: their workers count as alive. So do
    workers of another folder of the same sweep. The holder is what a ledger says, which may come from anywhere: it names a
    file in the folder of the sweep, and no other file is ever touched.
    """
    if not isinstance(holder, dict) or holder.get("host") != socket.gethostname():
        return False
    name = holder.get("name")
    if not isinstance(name, str) or not _WORKER_NAME.fullmatch(name):
        return False
    lock = lock_file(folder, name)
    try:
        with open_lock(lock, create=False) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            lock.unlink()
            return True
    except OSError:
        return False
