"""Entries of the cache: named by a hash of the files they were made from, and written whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from sparsefw.atomic_io import file_digest, remove_leftovers, replaced_folder
from sparsefw.data.errors import DataError

VERSION = 1  # of the entries; entries of another version are never read


def content_hash(facts: Sequence[object], files: Iterable[tuple[str, Path]]) -> str:
    """Return the SHA-256 of some facts and of the names and bytes of files; their folder does not matter."""
    digest = hashlib.sha256(repr((VERSION, *facts)).encode())
    for name, path in files:
        try:
            of_file = file_digest(path)
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}") from None
        digest.update(f"{name}\0{of_file}\0".encode(errors="surrogateescape"))
    return digest.hexdigest()


@contextlib.contextmanager
def replaced_entry(entry: Path) -> Iterator[Path]:
    """Yield a new folder to write into; when the block ends without an error, it replaces `entry`.

    Several processes may write the same entry at once: the last one wins.
    """
    try:
        remove_leftovers(entry.parent)
        with replaced_folder(entry) as folder:
            yield folder
    except OSError as error:
        reason = f"{error.strerror or error}; set SPARSEFW_CACHE to a folder that can be written"
        raise DataError(f"cannot write the cache {entry}: {reason}") from error
