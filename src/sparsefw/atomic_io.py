"""Write files and folders that are either complete or absent: write to a temporary name, fsync, rename."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_RENAME_ATTEMPTS = 100  # of a process that competes with others for the same folder
_AT_FDCWD = -100  # from Linux's fcntl.h
_RENAME_EXCHANGE = 2  # from Linux's fs.h


@contextlib.contextmanager
def replaced_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; when the block ends without an error, rename it to `path` in one step.

    After an error, a full disk or a kill, the previous file is intact.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:100]}.", suffix=".new", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)
        fsync(temporary)
        os.replace(temporary, path)
        fsync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder to write files into; when the block ends without an error, it replaces `folder`.

    Several processes may replace the same folder at once: the last one wins. After an error the previous folder is intact.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name[:100]}.", suffix=".new", dir=folder.parent))
    try:
        yield temporary
        for path in temporary.iterdir():
            path.chmod(0o644)  # some writers create files that only their owner can read
            fsync(path)
        fsync(temporary)
        temporary.chmod(0o755)
        _replace_folder(temporary, folder)
        fsync(folder.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # after an exchange, this is the previous folder


def _replace_folder(new: Path, old: Path) -> None:
    """Rename `new` to `old`; where the system can exchange two names, `old` exists at every moment."""
    for _ in range(_RENAME_ATTEMPTS):
        with contextlib.suppress(OSError):  # `old` exists
            return os.rename(new, old)
        if _exchange(new, old):
            return None
        # The system cannot exchange names, or another process has just moved `old`: move it out of the way.
        backup = new.with_suffix(".old")
        with contextlib.suppress(OSError):
            os.rename(old, backup)
            try:
                os.rename(new, old)
            except OSError:
                os.rename(backup, old)  # fails where another process has already put its folder there
            else:
                return shutil.rmtree(backup, ignore_errors=True)
    return os.rename(new, old)  # raises the error of the system


def _exchange(a: Path, b: Path) -> bool:
    """Exchange two names in one step; return False where the system or the file system cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    return bool(renameat2(_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b), _RENAME_EXCHANGE) == 0)


def fsync(path: Path) -> None:
    """Flush the content of a file, or the names in a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_leftover(name: str) -> bool:
    """Return whether a file or folder of this name is a temporary one of this module.

    >>> is_leftover(".plan.json.x1.new"), is_leftover("plan.json")
    (True, False)
    """
    return name.startswith(".") and name.endswith((".new", ".old"))


def remove_leftovers(folder: Path, older_than: float = 0.0) -> None:
    """Remove the temporary files and folders of killed processes that were not written to for `older_than` seconds."""
    for name in os.listdir(folder) if folder.is_dir() else ():
        path = folder / name
        with contextlib.suppress(FileNotFoundError):
            if is_leftover(name) and path.lstat().st_mtime <= time.time() - older_than:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file in one step."""
    with replaced_file(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Write a file of UTF-8 text in one step."""
    write_bytes(path, text.encode())


def write_json(path: Path, data: Any) -> None:
    """Write a JSON file in one step, with null for NaN and infinity."""
    write_text(path, json.dumps(json_ready(data), indent=1, sort_keys=False, allow_nan=False) + "\n")


def parse_json(text: str) -> Any:
    """Parse JSON of a file that may hold anything; ValueError where it is none, or so deeply nested that Python gives up."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("its content is nested too deeply") from None


def json_ready(value: Any) -> Any:
    """Return the value with text as keys, lists for tuples, text for paths, and None for NaN and infinity.

    >>> json_ready({1: (0.5, math.nan), "path": Path("a")})
    {'1': [0.5, None], 'path': 'a'}
    """
    if isinstance(value, dict):
        return {str(key): json_ready(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_ready(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
