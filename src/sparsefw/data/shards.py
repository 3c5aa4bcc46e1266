"""Find the numbered shards of a data set, and check that none is missing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from sparsefw.data.errors import DataError


def find_shards(folder: Path, patterns: Sequence[str]) -> list[Path]:
    """Return the files of the first pattern that matches any, sorted by name; raise DataError where a number is missing."""
    for pattern in patterns:
        shards = sorted(path for path in folder.glob(pattern) if path.is_file() and not path.name.startswith("."))
        if shards:
            _check_numbering(folder, [path.name for path in shards])
            return shards
    return []


def _check_numbering(folder: Path, names: Sequence[str]) -> None:
    """Check that no shard is missing.

    The name train-00003-of-00010.parquet states the number of shards; train-0003.tar only implies that 0002 exists.
    """
    numbered = [match for name in names if (match := re.search(r"^(.*?)(\d+)-of-(\d+)", name))]
    if numbered:
        stem, first, total = numbered[0].groups()
        for match in numbered:
            if match[3] != total:
                raise DataError(f"{folder}: shards of {total} and of {match[3]} are mixed; keep one of the two sets")
        expected = range(int(total))
        suffix = f"-of-{total}{Path(names[0]).suffix}"
    else:
        numbered = [match for name in names if (match := re.fullmatch(r"(.*?)(\d+)(\.\w+)", name))]
        if not numbered:
            return
        stem, first, suffix = numbered[0].groups()
        expected = range(int(first), max(int(match[2]) for match in numbered) + 1)
    present = {int(match[2]) for match in numbered}
    missing = expected.stop - expected.start - sum(i in expected for i in present)  # a name may ask for billions
    if missing:
        number = next(i for i in expected if i not in present)
        path = folder / f"{stem}{number:0{len(first)}d}{suffix}"
        more = f" (and {missing - 1} more)" if missing > 1 else ""
        raise DataError(f"{path} is missing{more}: the other shards are there")
