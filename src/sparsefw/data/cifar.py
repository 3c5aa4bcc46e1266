"""CIFAR-10 and CIFAR-100 as their author distributes them: pickles or plain bytes, extracted or still packed.

Krizhevsky: Learning Multiple Layers of Features from Tiny Images, 2009.
"""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from sparsefw.data.errors import DataError
from sparsefw.data.images import read_bytes
from sparsefw.data.parquet import parquet_format
from sparsefw.data.pickles import read_pickle
from sparsefw.data.source import ArraySource, Format

_PIXELS = 3 * 32 * 32  # red, green, blue, each 32 rows of 32
_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))

Batch = tuple[np.ndarray, np.ndarray]  # images n x 3072, labels n


@dataclass(frozen=True)
class _Archive:
    """An archive: its folder, the file it comes in, the files of each part, and the one with the names of the classes."""

    classes: int
    folder: str
    packed: str
    parts: dict[str, tuple[str, ...]]
    names: str
    read: Callable[[bytes, str], Batch]
    read_names: Callable[[bytes, str], tuple[str, ...]]

    def place(self, folder: Path) -> Path | None:
        """The extracted folder, the folder itself if it is that, or the packed file."""
        if (folder / self.folder).is_dir():
            return folder / self.folder
        if any((folder / name).is_file() for names in self.parts.values() for name in names):
            return folder
        return folder / self.packed if (folder / self.packed).is_file() else None

    def present(self, folder: Path) -> bool:
        return self.place(folder) is not None

    def open(self, folder: Path, part: str, cache: Path | None) -> ArraySource:
        place = self.place(folder)
        assert place is not None
        files = _files(place, (*self.parts[part], self.names))
        batches = []
        for name in self.parts[part]:
            if name not in files:
                raise DataError(f"{place / name} is missing")
            batches.append(self.read(files[name], str(place / name)))
        images = np.concatenate([images for images, _ in batches]).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        labels = np.concatenate([labels for _, labels in batches])
        names = self.read_names(files[self.names], str(place / self.names)) if self.names in files else None
        if names is not None and len(names) != self.classes:
            raise DataError(f"{place / self.names} names {len(names)} classes; expected {self.classes}")
        return ArraySource(np.ascontiguousarray(images), labels, self.classes, names, f"{place} {part}")


def _files(place: Path, names: Sequence[str]) -> dict[str, bytes]:
    """Those of the named files that are in the folder or the packed archive."""
    if place.is_dir():
        return {name: read_bytes(place / name) for name in names if (place / name).is_file()}
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(place, mode="r:gz") as tar:
            for member in tar:
                name = Path(member.name).name
                file = tar.extractfile(member) if member.isfile() and name in names else None
                if file is not None:
                    found[name] = file.read()
    except (tarfile.TarError, gzip.BadGzipFile, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{place} is damaged: {error}") from None
    return found


def _read_python(data: bytes, where: str, *, labels: str) -> Batch:
    content = read_pickle(data, where)
    images, classes = content.get("data"), content.get(labels)
    if not isinstance(images, np.ndarray) or images.shape[1:] != (_PIXELS,):
        raise DataError(f"{where} has no images of {_PIXELS} bytes under 'data'")
    if not isinstance(classes, list) or len(classes) != len(images) or not all(isinstance(i, int) for i in classes):
        raise DataError(f"{where} has no list of {len(images)} integers under {labels!r}")
    return images, np.array(classes, dtype=np.int64)


def _python_names(data: bytes, where: str, *, key: str) -> tuple[str, ...]:
    names = read_pickle(data, where).get(key)
    if not isinstance(names, list):
        raise DataError(f"{where} has no list of names under {key!r}")
    return tuple(map(str, names))


def _read_binary(data: bytes, where: str, *, labels: int) -> Batch:
    """Records of some label bytes, the last of which counts, and the pixels."""
    record = labels + _PIXELS
    if not data or len(data) % record:
        raise DataError(f"{where} has {len(data)} bytes; expected a multiple of {record}: it is cut off or damaged")
    rows = np.frombuffer(data, np.uint8).reshape(-1, record)
    return rows[:, labels:], rows[:, labels - 1].astype(np.int64)


def _text_names(data: bytes, where: str) -> tuple[str, ...]:
    return tuple(data.decode("utf-8", "replace").split())


def _formats(archives: tuple[_Archive, _Archive], folder: str) -> tuple[Format, ...]:
    parquet = parquet_format(archives[0].classes, {"train": ("train",), "test": ("test",)}, (".", "data", folder))
    return (*(Format(name, a.present, a.open) for name, a in zip(("python", "binary"), archives, strict=True)), parquet)


CIFAR10 = _formats(
    (
        _Archive(
            10,
            "cifar-10-batches-py",
            "cifar-10-python.tar.gz",
            {"train": _BATCHES, "test": ("test_batch",)},
            "batches.meta",
            partial(_read_python, labels="labels"),
            partial(_python_names, key="label_names"),
        ),
        _Archive(
            10,
            "cifar-10-batches-bin",
            "cifar-10-binary.tar.gz",
            {"train": tuple(f"{name}.bin" for name in _BATCHES), "test": ("test_batch.bin",)},
            "batches.meta.txt",
            partial(_read_binary, labels=1),
            _text_names,
        ),
    ),
    "plain_text",
)
CIFAR100 = _formats(
    (
        _Archive(
            100,
            "cifar-100-python",
            "cifar-100-python.tar.gz",
            {"train": ("train",), "test": ("test",)},
            "meta",
            partial(_read_python, labels="fine_labels"),
            partial(_python_names, key="fine_label_names"),
        ),
        _Archive(
            100,
            "cifar-100-binary",
            "cifar-100-binary.tar.gz",
            {"train": ("train.bin",), "test": ("test.bin",)},
            "fine_label_names.txt",
            partial(_read_binary, labels=2),
            _text_names,
        ),
    ),
    "cifar100",
)
