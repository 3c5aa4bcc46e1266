"""Images in folders: one folder per class, as in ImageNet and in most data of one's own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import final

import numpy as np

from sparsefw.data.errors import DataError
from sparsefw.data.files import content_hash
from sparsefw.data.images import decode_rgb, is_image, read_bytes
from sparsefw.data.source import Item, Source

# How people call the part that is not for training, in the order in which they are looked for.
TEST_FOLDERS = ("test", "val", "validation", "valid")


@final
class FolderSource(Source):
    """Image files with a class each, given by their paths relative to `root`."""

    def __init__(
        self,
        root: Path,
        files: Sequence[str],
        labels: Sequence[int],
        classes: int,
        class_names: tuple[str, ...],
    ) -> None:
        super().__init__(classes, class_names)
        self._root = root
        # Arrays, not lists: a million Python strings would be copied into every worker by their reference counts.
        self._files = np.array([os.fsencode(file) for file in files])
        self._labels = np.array(labels, dtype=np.int32)

    def __len__(self) -> int:
        return len(self._files)

    def load(self, i: int) -> Item:
        path = self._root / self._file(i)
        return Item(decode_rgb(read_bytes(path), str(path)), int(self._labels[i]))

    def name(self, i: int) -> str:
        return str(self._root / self._file(i))

    def fingerprint(self) -> str:
        files = ((f"{self._file(i)} {self._labels[i]}", self._root / self._file(i)) for i in range(len(self)))
        return content_hash(("folder", self.classes), files)

    def _file(self, i: int) -> str:
        return os.fsdecode(bytes(self._files[i]))


def subfolders(folder: Path) -> list[str]:
    """Names of the folders in a folder, sorted; hidden ones do not count."""
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def images_below(folder: Path) -> list[str]:
    """Paths of all images below a folder, relative to it, sorted. A folder with none is an error."""
    found: list[str] = []
    others: list[str] = []
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            if not name.startswith("."):
                (found if is_image(name) else others).append(os.path.relpath(os.path.join(parent, name), folder))
    if not found:
        rest = f", only {', '.join(sorted(others)[:3])}{' ...' if len(others) > 3 else ''}" if others else ""
        raise DataError(f"{folder} holds no images{rest}; expected .jpg, .png or the like, or no such class folder")
    return sorted(found)


def class_folders(root: Path, part: Path, class_names: Sequence[str], classes: int | None) -> FolderSource:
    """All images of part/CLASS/**; a class is numbered by its place in `class_names`."""
    numbers = {name: i for i, name in enumerate(class_names)}
    files: list[str] = []
    labels: list[int] = []
    for name in subfolders(part):
        if name not in numbers:
            raise DataError(
                f"{part / name} is a class without training images; the classes are the folders of {root / 'train'}"
            )
        relative = part.relative_to(root) / name
        new = [str(relative / file) for file in images_below(part / name)]
        files += new
        labels += [numbers[name]] * len(new)
    if classes is not None and len(class_names) > classes:
        raise DataError(f"{part} holds {len(class_names)} class folders; expected {classes} at most")
    return FolderSource(root, files, labels, classes or len(class_names), tuple(class_names))


def image_folder_present(folder: Path) -> bool:
    """train/CLASS/, or any of the test folders with classes."""
    return any(subfolders(folder / name) for name in ("train", *TEST_FOLDERS))


def open_image_folder(folder: Path, part: str, *, classes: int | None = None) -> FolderSource:
    """train/CLASS/* and test, val, validation or valid/CLASS/*."""
    names = ("train",) if part == "train" else TEST_FOLDERS
    chosen = next((folder / name for name in names if subfolders(folder / name)), None)
    if chosen is None:
        raise DataError(
            f"{folder} has no {part} part; expected a folder {' or '.join(names)} with one folder per class"
        )
    class_names = subfolders(folder / "train") or subfolders(chosen)
    _at_least_two(folder, class_names)
    return class_folders(folder, chosen, class_names, classes)


def open_own_folder(folder: Path, part: str) -> FolderSource:
    """As `open_image_folder`; or CLASS/* alone, which has no test part."""
    if image_folder_present(folder):
        return open_image_folder(folder, part)
    if part != "train":
        raise DataError(
            f"{folder} has no {part} part: it holds classes; expected train/CLASS/ and test/CLASS/ for that"
        )
    class_names = subfolders(folder)
    _at_least_two(folder, class_names)
    return class_folders(folder, folder, class_names, None)


def _at_least_two(folder: Path, class_names: Sequence[str]) -> None:
    if len(class_names) < 2:
        raise DataError(f"{folder} holds the classes {list(class_names)}; expected at least two class folders")
