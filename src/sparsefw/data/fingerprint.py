"""The fingerprint of a part of a data set: small, quick to make, and other where the images are others.

images     their number
classes    the number of classes
names      hash of the names of the files, in their order, and of all targets that are known without reading images
bytes      size of at most SIZED_FILES files, or of all images that are arrays already
content    hash of these sizes, and of at most READ_FILES files, from the first to the last; of large ones, of both ends

For 1.3 million images in files this reads at most 64 MiB. Two sets of the same names, labels and sizes can therefore have equal
fingerprints, where an image in the middle of a large set was changed in place.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np

from sparsefw.limits import require_regular

PartFingerprint: TypeAlias = Mapping[str, int | str]
Fingerprint: TypeAlias = Mapping[str, PartFingerprint]  # by part: "train", "validation", "test"

SIZED_FILES = 4096  # more would take minutes on a network file system
READ_FILES = 64
END_BYTES = 512 << 10  # of either end of a large file
ARRAY_BYTES = 256 << 20  # more of larger arrays, which are made up anyway, would take seconds


def files_fingerprint(
    images: int, classes: int, facts: object, count: int, file: Callable[[int], tuple[str, Path]]
) -> PartFingerprint:
    """Return the fingerprint of images in `count` files.

    Args:
        facts: the targets, as far as they are in no file.
        file: returns the name and the path of file i.
    """
    names = hashlib.sha256(repr(facts).encode())
    for i in range(count):
        names.update(f"{file(i)[0]}\0".encode(errors="surrogateescape"))
    sizes = [_size(file(i)[1]) for i in _spread(count, SIZED_FILES)]
    content = hashlib.sha256(repr(sizes).encode())
    for i in _spread(count, READ_FILES):
        content.update(hashlib.sha256(_ends(file(i)[1])).digest())
    return _part(images, classes, names.hexdigest(), sum(sizes), content.hexdigest())


def arrays_fingerprint(images: np.ndarray, targets: np.ndarray, classes: int) -> PartFingerprint:
    """Return the fingerprint of images that are arrays already."""
    read = _spread(len(images), max(1, len(images) * ARRAY_BYTES // max(1, images.nbytes)))
    content = hashlib.sha256(repr(images.shape).encode())
    for i in read:
        content.update(images[i].tobytes())
    names = hashlib.sha256(targets.astype(np.int64).tobytes()).hexdigest()
    return _part(len(images), classes, names, images.nbytes, content.hexdigest())


def difference(before: Fingerprint, now: Fingerprint) -> str | None:
    """Return in words what has changed first in every part; None if nothing has."""
    changes = [
        change for part in dict.fromkeys((*before, *now)) if (change := _change(part, before.get(part), now.get(part)))
    ]
    return "; ".join(changes) or None


def _change(part: str, before: PartFingerprint | None, now: PartFingerprint | None) -> str | None:
    if before is None or now is None:
        return None if before is now else f"there {'is no' if now is None else 'is now a'} {part} part"
    for key in ("images", "classes", "bytes"):
        if before.get(key) != now.get(key):
            return f"the {part} part has {_amount(now.get(key))} {key} instead of {_amount(before.get(key))}"
    for key, what in (("names", "names or labels"), ("content", "content")):
        if before.get(key) != now.get(key):
            return f"the {part} part has as many images, but other {what}"
    return None


def _amount(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else "?"


def _part(images: int, classes: int, names: str, size: int, content: str) -> PartFingerprint:
    return {"images": images, "classes": classes, "names": names, "bytes": size, "content": content}


def _spread(count: int, most: int) -> list[int]:
    """Return at most so many indices, spread evenly from the first to the last."""
    return sorted({int(i) for i in np.linspace(0, count - 1, min(count, most)).round()})


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0  # whoever reads the image says that it is missing, or skips it


def _ends(path: Path) -> bytes:
    try:
        require_regular(path)
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size <= 2 * END_BYTES:
                return file.read()
            first = file.read(END_BYTES)
            file.seek(size - END_BYTES)
            return first + file.read(END_BYTES)
    except OSError:
        return b""  # as in _size
