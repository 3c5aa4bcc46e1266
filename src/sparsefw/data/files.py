"""Files of data sets, read as a whole: what is too large, or no file at all, is refused in one line."""

from __future__ import annotations

import gzip
import io
import zlib
from pathlib import Path

from sparsefw.data.errors import DataError
from sparsefw.limits import ARRAY_BYTES, read_bounded
from sparsefw.text import one_line


def read_bytes(path: Path) -> bytes:
    """Read a file; raise DataError where that is impossible."""
    try:
        return read_bounded(path, ARRAY_BYTES)
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None


def read_lines(path: Path) -> list[str]:
    """Return the lines of a file of text; DataError where it cannot be read, or is none."""
    try:
        return read_bytes(path).decode().splitlines()
    except UnicodeDecodeError:
        raise DataError(f"{path} is not text in UTF-8") from None


def unpacked(path: Path) -> bytes:
    """Return what is packed in a gzip file, at most ARRAY_BYTES: a megabyte of zeros can be packed into a thousand bytes."""
    try:
        with gzip.open(io.BytesIO(read_bytes(path))) as file:
            content = file.read(ARRAY_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is damaged: {one_line(error)}") from None
    if len(content) > ARRAY_BYTES:
        raise DataError(f"{path} unpacks to more than {ARRAY_BYTES:,} bytes")
    return content
