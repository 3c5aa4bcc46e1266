"""Files and folders that are either wholly there or not at all: written aside, flushed to disk, renamed."""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import shutil
import tempfile
import time
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
    return name.startswith(".") and name.endswith((".new", ".old"))


def sweep(folder: Path, older_than: float = 0.0) -> None:
    """Remove what kills left of unfinished files and folders, if nobody has written to it for so many seconds."""
    for name in os.listdir(folder) if folder.is_dir() else ():
        path = folder / name
        with contextlib.suppress(FileNotFoundError):
            if is_leftover(name) and path.lstat().st_mtime <= time.time() - older_than:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


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
            path.chmod(0o644)  # some writers make files that nobody else may read
            flush(path)
        flush(aside)
        aside.chmod(0o755)
        _swap(aside, folder)
        flush(folder.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)  # after the swap, this is what was there before


def _swap(new: Path, old: Path) -> None:
    """Put `new` in the place of `old`, where the system can exchange names at no moment without either."""
    for _ in range(100):
        with contextlib.suppress(OSError):  # there is one already
            return os.rename(new, old)
        if _exchange(new, old):
            return None
        # The system cannot exchange names, or another process moved the old one meanwhile: out of the way with it.
        backup = new.with_suffix(".old")
        with contextlib.suppress(OSError):
            os.rename(old, backup)
            try:
                os.rename(new, old)
            except OSError:
                os.rename(backup, old)  # as it was; another process may have been faster
            else:
                return shutil.rmtree(backup, ignore_errors=True)
    return os.rename(new, old)  # says what is wrong


def _exchange(a: Path, b: Path) -> bool:
    """Linux can exchange two names in one step, on most file systems; False where it cannot."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(call(here, os.fsencode(a), here, os.fsencode(b), exchange) == 0)


def write_bytes(path: Path, content: bytes) -> None:
    with replaced_file(path) as aside:
        aside.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_json(path: Path, data: Any) -> None:
    """What is not a finite number is null: JSON has no NaN."""
    write_text(path, json.dumps(strict(data), indent=1, sort_keys=False, allow_nan=False) + "\n")


def strict(value: Any) -> Any:
    """The value as JSON can keep it."""
    if isinstance(value, dict):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def cache_folder() -> Path:
    """Where what can be made again is kept: $SPARSEFW_CACHE, or the user's cache folder."""
    usual = os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "sparsefw")
    return Path(os.environ.get("SPARSEFW_CACHE") or usual).expanduser()


def flush(path: Path) -> None:
    """Wait until the disk has it: a file's content, or the names in a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
