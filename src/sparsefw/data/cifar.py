"""CIFAR-10 and CIFAR-100 as their author distributes them: pickles or plain bytes, extracted or packed.

Krizhevsky: Learning Multiple Layers of Features from Tiny Images, 2009.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from sparsefw.data.errors import DataError
from sparsefw.data.files import read_bytes, unpacked
from sparsefw.data.image_source import ArraySource, Format
from sparsefw.data.parquet import parquet_format
from sparsefw.data.restricted_pickle import read_pickle
from sparsefw.limits import ARRAY_BYTES
from sparsefw.text import one_line

_PIXELS = 3 * 32 * 32  # red, green, blue, each 32 rows of 32
_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))

ImagesAndLabels = tuple[np.ndarray, np.ndarray]  # n x 3072 bytes, n classes


@dataclass(frozen=True)
class _Archive:
    """One of the archives.

    classes         number of classes
    folder          name of the extracted folder
    packed          name of the packed file
    parts           part -> its files
    names_file      the file with the names of the classes
    read            reads a file of a part
    read_names      reads names_file
    """

    classes: int
    folder: str
    packed: str
    parts: dict[str, tuple[str, ...]]
    names_file: str
    read: Callable[[bytes, str], ImagesAndLabels]
    read_names: Callable[[bytes, str], tuple[str, ...]]

    def find(self, folder: Path) -> Path | None:
        """Return the extracted folder, which may be `folder` itself, or the packed file."""
        if (folder / self.folder).is_dir():
            return folder / self.folder
        if any((folder / name).is_file() for names in self.parts.values() for name in names):
            return folder
        return folder / self.packed if (folder / self.packed).is_file() else None

    def present(self, folder: Path) -> bool:
        return self.find(folder) is not None

    def open(self, folder: Path, part: str, cache: Path | None) -> ArraySource:
        archive = self.find(folder)
        assert archive is not None
        files = _read_files(archive, (*self.parts[part], self.names_file))
        batches = []
        for name in self.parts[part]:
            if name not in files:
                raise DataError(f"{archive / name} is missing")
            batches.append(self.read(files[name], str(archive / name)))
        images = np.concatenate([images for images, _ in batches]).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        labels = np.concatenate([labels for _, labels in batches])
        return ArraySource(
            np.ascontiguousarray(images), labels, self.classes, self._class_names(archive, files), f"{archive} {part}"
        )

    def _class_names(self, archive: Path, files: dict[str, bytes]) -> tuple[str, ...] | None:
        if self.names_file not in files:
            return None
        path = archive / self.names_file
        names = self.read_names(files[self.names_file], str(path))
        if len(names) != self.classes:
            raise DataError(f"{path} names {len(names)} classes; expected {self.classes}")
        return names


def _read_files(archive: Path, names: Sequence[str]) -> dict[str, bytes]:
    """Return the content of those of the named files that are in the folder or packed file."""
    if archive.is_dir():
        return {name: read_bytes(archive / name) for name in names if (archive / name).is_file()}
    contents: dict[str, bytes] = {}
    size = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(unpacked(archive)), mode="r:") as tar:
            for member in tar:
                name = Path(member.name).name
                file = tar.extractfile(member) if member.isfile() and name in names else None
                if file is None:
                    continue
                size += member.size  # a sparse member may be larger than the archive
                if size > ARRAY_BYTES:
                    raise DataError(f"{archive}: {name} unpacks to more than {ARRAY_BYTES:,} bytes")
                contents[name] = file.read()
    except (tarfile.TarError, OSError, EOFError) as error:
        raise DataError(f"{archive} is damaged: {one_line(error)}") from None
    return contents


def _read_python(data: bytes, origin: str, *, labels: str) -> ImagesAndLabels:
    content = read_pickle(data, origin)
    images = content.get("data")
    classes = content.get(labels)
    if not isinstance(images, np.ndarray) or images.shape[1:] != (_PIXELS,):
        raise DataError(f"{origin} has no images of {_PIXELS} bytes under 'data'")
    if not isinstance(classes, list) or len(classes) != len(images) or not all(isinstance(i, int) for i in classes):
        raise DataError(f"{origin} has no list of {len(images)} integers under {labels!r}")
    return images, np.array(classes, dtype=np.int64)


def _python_names(data: bytes, origin: str, *, key: str) -> tuple[str, ...]:
    names = read_pickle(data, origin).get(key)
    if not isinstance(names, list):
        raise DataError(f"{origin} has no list of names under {key!r}")
    return tuple(map(str, names))


def _read_binary(data: bytes, origin: str, *, labels: int) -> ImagesAndLabels:
    """Read records of `labels` label bytes, the last of which is the class, followed by the pixels."""
    record = labels + _PIXELS
    if not data or len(data) % record:
        raise DataError(f"{origin} has {len(data)} bytes; expected a multiple of {record}: it is cut off or damaged")
    rows = np.frombuffer(data, np.uint8).reshape(-1, record)
    return rows[:, labels:], rows[:, labels - 1].astype(np.int64)


def _text_names(data: bytes, origin: str) -> tuple[str, ...]:
    return tuple(data.decode("utf-8", "replace").split())


def _formats(archives: tuple[_Archive, _Archive], folder: str) -> tuple[Format, ...]:
    python, binary = archives
    return (
        Format("python", python.present, python.open),
        Format("binary", binary.present, binary.open),
        parquet_format(python.classes, {"train": ("train",), "test": ("test",)}, (".", "data", folder)),
    )


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
