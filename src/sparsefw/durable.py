"""Files that are either wholly there or not at all: written aside, flushed to disk, renamed."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


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
