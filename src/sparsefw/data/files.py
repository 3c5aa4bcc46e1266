"""Files of a data set: hashed by content, checked for gaps, and derived ones written whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from sparsefw.atomic_io import replaced_folder, sweep
from sparsefw.data.errors import DataError

VERSION = 1  # of what is derived from source files; a new one leaves old caches unused


def content_hash(facts: Sequence[object], files: Iterable[tuple[str, Path]]) -> str:
    """SHA-256 over some facts, and over names and bytes of files, wherever they lie."""
    digest = hashlib.sha256(repr((VERSION, *facts)).encode())
    for name, path in files:
        try:
            with path.open("rb") as file:
                inner = hashlib.file_digest(file, "sha256")
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}") from None
        digest.update(f"{name}\0{inner.hexdigest()}\0".encode(errors="surrogateescape"))
    return digest.hexdigest()


def shards(folder: Path, patterns: Sequence[str]) -> list[Path]:
    """The files of the first pattern that matches any, by name. A gap in their numbering is an error that names the shard."""
    for pattern in patterns:
        found = sorted(path for path in folder.glob(pattern) if path.is_file() and not path.name.startswith("."))
        if found:
            _check_numbering(folder, [path.name for path in found])
            return found
    return []


def _check_numbering(folder: Path, names: Sequence[str]) -> None:
    """train-00003-of-00010.parquet says how many there are; train-0003.tar at least that 0002 comes before."""
    of = [re.search(r"^(.*?)(\d+)-of-(\d+)", name) for name in names]
    counted = [match for match in of if match]
    if counted:
        stem, width, total = counted[0][1], len(counted[0][2]), counted[0][3]
        for match in counted:
            if match[3] != total:
                raise DataError(f"{folder}: shards of {total} and of {match[3]} are mixed; keep one of the two sets")
        wanted, suffix = range(int(total)), f"-of-{total}{Path(names[0]).suffix}"
    else:
        counted = [found for name in names if (found := re.fullmatch(r"(.*?)(\d+)(\.\w+)", name))]
        if not counted:
            return
        stem, width, suffix = counted[0][1], len(counted[0][2]), counted[0][3]
        wanted = range(int(counted[0][2]), max(int(match[2]) for match in counted) + 1)
    there = {int(match[2]) for match in counted}
    if missing := [i for i in wanted if i not in there]:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise DataError(
            f"{folder / f'{stem}{missing[0]:0{width}d}{suffix}'} is missing{more}: the other shards are there"
        )


@contextlib.contextmanager
def written_aside(target: Path) -> Iterator[Path]:
    """A new folder to write into; when the block ends well, it is flushed to disk and takes the place of `target`.

    Safe with several processes at once, as long as they would all write the same: the last one stays.
    """
    try:
        sweep(
            target.parent, older_than=86400
        )  # what processes that were killed have left behind: no one writes for a day
        with replaced_folder(target) as aside:
            yield aside
    except OSError as error:
        reason = f"{error.strerror or error}; set SPARSEFW_CACHE to a folder that can be written"
        raise DataError(f"cannot write the cache {target}: {reason}") from error
