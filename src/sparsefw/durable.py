"""Files and folders that are either wholly there or not at all: written aside, flushed to disk, renamed."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def replaced_file(path: Path) -> Iterator[Path]:
    """A name to write to; when the block ends well that file takes the place of `path` in one step.

    Whatever goes wrong, a full disk or a kill, the previous file stays whole.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:100]}.", suffix=".new", dir=path.parent)
    os.close(handle)
    aside = Path(name)
    try:
        yield aside
        aside.chmod(0o644)
        flush(aside)
        os.replace(aside, path)
        flush(path.parent)
    finally:
        aside.unlink(missing_ok=True)


def is_leftover(name: str) -> bool:
    """Whether a file of that name was being written when its process was killed."""
    return name.startswith(".") and name.endswith(".new")


def sweep(folder: Path) -> None:
    """Remove what kills left of unfinished files. For folders that nobody else writes to at the moment."""
    for name in os.listdir(folder) if folder.is_dir() else ():
        if is_leftover(name):
            (folder / name).unlink(missing_ok=True)


@contextlib.contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """An empty folder to write files into; when the block ends well it takes the place of `folder`, whose content is then gone.

    Several processes may do this at once: the last one stays. Whatever goes wrong, the previous folder stays whole.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name[:100]}.", suffix=".new", dir=folder.parent))
    try:
        yield aside
        for path in aside.iterdir():
            flush(path)
        flush(aside)
        aside.chmod(0o755)
        _swap(aside, folder)
        flush(folder.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)  # after the swap, this is what was there before


def _swap(new: Path, old: Path) -> None:
    """Put `new` in the place of `old`, where the system can at no moment without either."""
    for _ in range(100):
        if _exchange(new, old):
            return
        # There is none yet, or another process has just put its own there, or this system cannot exchange names.
        with contextlib.suppress(FileNotFoundError, FileExistsError, OSError):
            os.rename(new, old)
            return
        if not _CAN_EXCHANGE:
            backup = Path(tempfile.mkdtemp(prefix=f".{old.name[:100]}.", suffix=".old", dir=old.parent))
            with contextlib.suppress(FileNotFoundError):
                os.rename(old, backup)
            shutil.rmtree(backup, ignore_errors=True)
    os.rename(new, old)  # says what is wrong


def _renameat2() -> Any:
    try:
        return ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return None


_CAN_EXCHANGE = _renameat2() is not None


def _exchange(a: Path, b: Path) -> bool:
    """Linux can exchange two names in one step; False where it cannot, or where one of the two is not there."""
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return _CAN_EXCHANGE and _renameat2()(here, os.fsencode(a), here, os.fsencode(b), exchange) == 0


def write_bytes(path: Path, content: bytes) -> None:
    with replaced_file(path) as aside:
        aside.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def flush(path: Path) -> None:
    """Wait until the disk has it: a file's content, or the names in a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
