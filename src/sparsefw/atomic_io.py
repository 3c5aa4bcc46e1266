"""Write files and folders that are either complete or absent: write to a temporary name, fsync, rename."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import json
import math
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from sparsefw.limits import require_regular
from sparsefw.lock_files import open_lock

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}\.new", re.DOTALL)
_NAME_LENGTH = 50  # characters of the target in the name of a temporary folder; names end at 255 bytes
_LOCK = ".sparsefw-lock"  # in a temporary folder
_OLD = ".sparsefw-old"  # in a temporary folder: the folder that is being replaced
_RENAME_ATTEMPTS = 100  # of a process that competes with others for the same folder
_AT_FDCWD = -100  # from Linux's fcntl.h
_RENAME_EXCHANGE = 2  # from Linux's fs.h


@contextlib.contextmanager
def replaced_file(path: Path) -> Iterator[Path]:
    """Yield a path to write a file to; when the block ends without an error, the file replaces `path` in one step.

    After an error, a full disk or a kill, the previous file is intact.
    """
    with _temporary_beside(path) as (aside, mode):
        yield aside
        aside.chmod(mode)
        fsync(aside)
        os.replace(aside, path)
        fsync(path.parent)


@contextlib.contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder to write files into; when the block ends without an error, it replaces `folder`.

    Several processes may replace the same folder at once: the last one wins. After an error the previous folder is intact.
    """
    with _temporary_beside(folder) as (aside, mode):
        aside.mkdir()
        yield aside
        for path in aside.iterdir():
            path.chmod(mode)
            fsync(path)
        fsync(aside)
        _replace_folder(aside, folder)
        fsync(folder.parent)


@contextlib.contextmanager
def _temporary_beside(target: Path) -> Iterator[tuple[Path, int]]:
    """Yield a path in a temporary folder beside `target`, and the mode of a new file; some writers ignore the umask.

    The folder is removed when the block ends; what killed processes left of the same target, when it begins. A process keeps
    its folder locked, and a kill unlocks it, so that no date has to tell which folders are still in use.
    Errors of the system name `target` instead of the temporary path.
    """
    with naming(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_unlocked(target.parent, f".{target.name[:_NAME_LENGTH]}.")
        temporary, lock = _locked_folder(target)
    try:
        with naming(target, temporary):
            yield temporary / target.name, temporary.stat().st_mode & 0o666
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # after an exchange, with the previous folder
        lock.close()


@contextlib.contextmanager
def naming(path: Path, temporary: Path | None = None) -> Iterator[None]:
    """Name `path` in errors of the system that name no file, such as those of a write, or one in its temporary folder."""
    try:
        yield
    except OSError as error:
        failed = path
        if error.filename is not None:
            place = Path(os.fsdecode(error.filename))
            if temporary is None or not place.is_relative_to(temporary):
                raise
            if place.is_relative_to(temporary / path.name):
                failed = path / place.relative_to(temporary / path.name)
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(failed)) from error


def _locked_folder(target: Path) -> tuple[Path, IO[str]]:
    """Make a temporary folder beside `target`; return it and its lock, which is held."""
    while True:
        temporary = target.with_name(f".{target.name[:_NAME_LENGTH]}.{secrets.token_hex(4)}.new")
        with naming(target, temporary):
            temporary.mkdir()
        with (
            naming(target, temporary),
            contextlib.suppress(FileNotFoundError),
        ):  # it was taken for abandoned before it was locked
            lock = open_lock(temporary / _LOCK)
            with contextlib.suppress(OSError):  # no locks on this file system: then nothing is taken for abandoned
                fcntl.flock(lock, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(lock.fileno()), os.stat(temporary / _LOCK)):
                    return temporary, lock
            lock.close()


def _remove_unlocked(folder: Path, prefix: str) -> None:
    """Remove the temporary folders with this prefix whose process is dead; a folder without our lock file is not ours."""
    for name in os.listdir(folder):
        temporary = folder / name
        if not (name.startswith(prefix) and is_leftover(name)) or temporary.is_symlink():
            continue
        with contextlib.suppress(OSError):  # it is empty: its process was killed before it made the lock
            temporary.rmdir()
        with contextlib.suppress(OSError), open_lock(temporary / _LOCK, create=False) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if all((folder / old.name).exists() for old in temporary.glob(f"{_OLD}/*")):
                shutil.rmtree(temporary)


def _replace_folder(new: Path, old: Path) -> None:
    """Rename `new` to `old`; where the system can exchange two names, `old` exists at every moment."""
    for _ in range(_RENAME_ATTEMPTS):
        with contextlib.suppress(OSError):  # `old` exists
            return os.rename(new, old)
        if _exchange(new, old):
            return None
        # The system cannot exchange names, or another process has just moved `old`: move it out of the way.
        backup = new.parent / _OLD / old.name
        backup.parent.mkdir(exist_ok=True)
        with contextlib.suppress(OSError):
            os.rename(old, backup)
            try:
                os.rename(new, old)
            except OSError:
                os.rename(backup, old)  # fails where another process has already put its folder there
            else:
                return None
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
    """Return the SHA-256 of a file's content; OSError where it has none."""
    require_regular(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_leftover(name: str) -> bool:
    """Return whether a folder of this name is a temporary one of this module.

    >>> is_leftover(".plan.json.0123abcd.new"), is_leftover("plan.json")
    (True, False)
    """
    return _TEMPORARY.fullmatch(name) is not None


def remove_leftovers(folder: Path) -> None:
    """Remove what killed processes left in a folder; temporary folders of running ones stay."""
    if folder.is_dir():
        _remove_unlocked(folder, ".")


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
