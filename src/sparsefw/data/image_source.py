"""Source, the base of all readers: one part of a data set as a sequence of images with their targets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np

from sparsefw.data.cache_entries import content_hash
from sparsefw.data.errors import DataError
from sparsefw.data.fingerprint import PartFingerprint, arrays_fingerprint, files_fingerprint


@dataclass(frozen=True, eq=False)
class Item:
    """An image and its target.

    image    uint8, height x width x channels
    target   its class, or its label map, uint8 of height x width
    """

    image: np.ndarray
    target: int | np.ndarray


class Source(ABC):
    """One part (train, test) of a data set, read in any order.

    A source holds no open file, so that it can be pickled and sent to worker processes.
    """

    def __init__(self, classes: int, class_names: tuple[str, ...] | None) -> None:
        self.classes = classes
        self.class_names = class_names

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def load(self, i: int) -> Item:
        """Decode image i; raise DataError with its name where it is corrupt."""

    @abstractmethod
    def name(self, i: int) -> str:
        """Return the file of image i, and its place within a file of many images."""

    def blocks(self) -> list[range] | None:
        """Return ranges of images that are cheap to read together; None where the order does not matter."""
        return None

    @abstractmethod
    def fingerprint(self) -> PartFingerprint:
        """Return what shows that the images have changed; it does not depend on the folder of the data set."""


class FileSource(Source):
    """Images that are decoded from files."""

    @abstractmethod
    def facts(self) -> tuple[object, ...]:
        """Return what the images and targets depend on beside the names and contents of the files."""

    @abstractmethod
    def file_count(self) -> int: ...

    @abstractmethod
    def file(self, i: int) -> tuple[str, Path]:
        """Return the name of file i in the data set, with the targets that are not in the file, and its path."""

    @final
    def fingerprint(self) -> PartFingerprint:
        return files_fingerprint(len(self), self.classes, self.facts(), self.file_count(), self.file)

    @final
    def content_hash(self) -> str:
        """Return a hash of everything that decoding depends on; this reads all files."""
        return content_hash(self.facts(), (self.file(i) for i in range(self.file_count())))


@final
class ArraySource(Source):
    """Images that are arrays already: uint8 of n x height x width x channels, and the class of each."""

    def __init__(
        self,
        images: np.ndarray,
        targets: np.ndarray,
        classes: int,
        class_names: tuple[str, ...] | None = None,
        origin: str = "array",
    ) -> None:
        super().__init__(classes, class_names)
        if images.dtype != np.uint8 or images.ndim != 4:
            raise DataError(f"{origin}: images are uint8 of n x height x width x channels, not {_describe(images)}")
        if targets.shape != images.shape[:1] or not np.issubdtype(targets.dtype, np.integer):
            raise DataError(f"{origin}: one integer label per image ({len(images)}), not {_describe(targets)}")
        if not len(images):
            raise DataError(f"{origin}: holds no images")
        for i in np.flatnonzero((targets < 0) | (targets >= classes))[:1]:
            raise DataError(f"{origin}: image {i} has label {targets[i]}; labels are 0 to {classes - 1}")
        self.images = images
        self.targets = targets.astype(np.int64)
        self.origin = origin

    def __len__(self) -> int:
        return len(self.images)

    def load(self, i: int) -> Item:
        return Item(self.images[i], int(self.targets[i]))

    def name(self, i: int) -> str:
        return f"{self.origin}: image {i}"

    def fingerprint(self) -> PartFingerprint:
        return arrays_fingerprint(self.images, self.targets, self.classes)


@dataclass(frozen=True)
class Format:
    """A file format in which a data set is distributed.

    name      how messages and tests call it
    present   returns whether a folder holds such files, even incomplete ones: `open` then names the missing file
    open      opens a part of the data set: (folder, part, cache folder or None) -> Source
    """

    name: str
    present: Callable[[Path], bool]
    open: Callable[[Path, str, Path | None], Source]


def checked_class(label: object, classes: int, origin: str) -> int:
    """Return the label; raise DataError unless it is one of the classes."""
    if not isinstance(label, int | np.integer) or not 0 <= label < classes:
        raise DataError(f"{origin}: label {label!r}; expected an integer from 0 to {classes - 1}")
    return int(label)


def _describe(array: np.ndarray) -> str:
    return f"{array.dtype} of {' x '.join(map(str, array.shape)) or 'no axes'}"
