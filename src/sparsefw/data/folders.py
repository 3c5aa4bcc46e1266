"""Images in folders: one folder per class, as in ImageNet and in most data sets of users."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import final

import numpy as np

from sparsefw.data.errors import DataError
from sparsefw.data.files import read_bytes
from sparsefw.data.image_source import FileSource, Item
from sparsefw.data.images import decode_gray, decode_rgb, is_image

# Possible names of the test part; the first that exists is used.
TEST_FOLDERS = ("test", "val", "validation", "valid")


@final
class FolderSource(FileSource):
    """Image files, by their paths relative to `root`, each with a class; read as gray pixels if asked for."""

    def __init__(
        self,
        root: Path,
        files: Sequence[str],
        labels: Sequence[int],
        classes: int,
        class_names: tuple[str, ...],
        gray: bool = False,
    ) -> None:
        super().__init__(classes, class_names)
        self._root = root
        self._decode = decode_gray if gray else decode_rgb
        # Arrays, because reference counts would make every forked worker copy a million Python strings.
        self._files = np.array([os.fsencode(file) for file in files])
        self._labels = np.array(labels, dtype=np.int32)

    def __len__(self) -> int:
        return len(self._files)

    def load(self, i: int) -> Item:
        path = self._root / self._file(i)
        return Item(self._decode(read_bytes(path), str(path)), int(self._labels[i]))

    def name(self, i: int) -> str:
        return str(self._root / self._file(i))

    def facts(self) -> tuple[object, ...]:
        return ("folder", self.classes)

    def file_count(self) -> int:
        return len(self)

    def file(self, i: int) -> tuple[str, Path]:
        return f"{self._file(i)} {self._labels[i]}", self._root / self._file(i)

    def _file(self, i: int) -> str:
        return os.fsdecode(bytes(self._files[i]))


def subfolders(folder: Path) -> list[str]:
    """Return the sorted names of the folders in a folder, without hidden ones."""
    if not folder.is_dir():
        return []
    return sorted(name for name in os.listdir(folder) if (folder / name).is_dir() and not name.startswith("."))


def images_below(folder: Path) -> list[str]:
    """Return the sorted paths of all images below a folder, relative to it; raise DataError where there are none."""
    images: list[str] = []
    others: list[str] = []
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            if not name.startswith("."):
                (images if is_image(name) else others).append(os.path.relpath(os.path.join(parent, name), folder))
    if not images:
        rest = f", only {', '.join(sorted(others)[:3])}{' ...' if len(others) > 3 else ''}" if others else ""
        raise DataError(f"{folder} holds no images{rest}; add some (.jpg, .png, ...), or leave the folder out")
    return sorted(images)


def class_folders(
    root: Path, part: Path, class_names: Sequence[str], classes: int | None, gray: bool = False
) -> FolderSource:
    """Open all images of part/CLASS/**; the number of a class is its place in `class_names`."""
    numbers = {name: i for i, name in enumerate(class_names)}
    files: list[str] = []
    labels: list[int] = []
    for name in subfolders(part):
        if name not in numbers:
            raise DataError(
                f"{part / name} is a class without training images; the classes are the folders of {root / 'train'}"
            )
        relative = part.relative_to(root) / name
        class_files = [str(relative / file) for file in images_below(part / name)]
        files += class_files
        labels += [numbers[name]] * len(class_files)
    if classes is not None and len(class_names) > classes:
        raise DataError(f"{part} holds {len(class_names)} class folders; expected {classes} at most")
    return FolderSource(root, files, labels, classes or len(class_names), tuple(class_names), gray)


def image_folder_present(folder: Path) -> bool:
    """Return whether a folder has class folders in train or in one of TEST_FOLDERS."""
    return any(subfolders(folder / name) for name in ("train", *TEST_FOLDERS))


def open_image_folder(folder: Path, part: str, *, classes: int | None = None) -> FolderSource:
    """Open train/CLASS/*, or the test part in the first of TEST_FOLDERS that has class folders."""
    names = ("train",) if part == "train" else TEST_FOLDERS
    chosen = next((folder / name for name in names if subfolders(folder / name)), None)
    if chosen is None:
        raise DataError(
            f"{folder} has no {part} part; expected a folder {' or '.join(names)} with one folder per class"
        )
    class_names = subfolders(folder / "train") or subfolders(chosen)
    _require_two_classes(folder, class_names)
    return class_folders(folder, chosen, class_names, classes)


def open_user_folder(folder: Path, part: str) -> FolderSource:
    """Open a part like `open_image_folder`; or CLASS/* alone, which has no test part."""
    if image_folder_present(folder):
        return open_image_folder(folder, part)
    if part != "train":
        raise DataError(
            f"{folder} has no {part} part: it holds classes; expected train/CLASS/ and test/CLASS/ for that"
        )
    class_names = subfolders(folder)
    _require_two_classes(folder, class_names)
    return class_folders(folder, folder, class_names, None)


def open_unlabelled_folder(folder: Path, gray: bool) -> FolderSource:
    """Open all images below a folder; none has a class, so all get the same."""
    _require_folder(folder)
    files = images_below(folder)
    return FolderSource(folder, files, [0] * len(files), 1, ("",), gray)


def open_labelled_folder(folder: Path, gray: bool) -> FolderSource:
    """Open the images of CLASS/*, or of a part named as in TEST_FOLDERS; classes are numbered by their sorted names."""
    _require_folder(folder)
    part = next((folder / name for name in TEST_FOLDERS if subfolders(folder / name)), folder)
    class_names = subfolders(part)
    _require_two_classes(part, class_names)
    return class_folders(part, part, class_names, None, gray)


def _require_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise DataError(f"{folder} is {'a file' if folder.exists() else 'not there'}; expected a folder of images")


def _require_two_classes(folder: Path, class_names: Sequence[str]) -> None:
    if len(class_names) < 2:
        raise DataError(f"{folder} holds the classes {list(class_names)}; expected at least two class folders")
