"""Tiny ImageNet: 200 classes, 64 x 64 pixels; the classes of its val part are in a text file.

Ya Le, Xuan Yang: Tiny ImageNet Visual Recognition Challenge, CS 231N, Stanford, 2015.
"""

from __future__ import annotations

from pathlib import Path

from sparsefw.data.errors import DataError
from sparsefw.data.files import read_lines
from sparsefw.data.folders import FolderSource, class_folders, images_below, subfolders

CLASSES = 200


def _root(folder: Path) -> Path | None:
    candidates = (folder, folder / "tiny-imagenet-200")
    return next((candidate for candidate in candidates if (candidate / "wnids.txt").is_file()), None)


def present(folder: Path) -> bool:
    """Return whether a folder holds Tiny ImageNet."""
    return _root(folder) is not None


def open_folder(folder: Path, part: str, cache: Path | None) -> FolderSource:
    """Open a part. Classes are numbered in the order of their WordNet ids, as is usual; wnids.txt itself is unordered."""
    root = _root(folder)
    assert root is not None
    class_names = tuple(sorted(word for line in read_lines(root / "wnids.txt") for word in line.split()))
    if part == "train":
        if missing := sorted(set(class_names) - set(subfolders(root / "train"))):
            raise DataError(f"{root / 'train' / missing[0]} is missing: wnids.txt lists it")
        return class_folders(root, root / "train", class_names, CLASSES)
    if not (root / "val" / "val_annotations.txt").is_file() and subfolders(root / "val") not in ([], ["images"]):
        return class_folders(root, root / "val", class_names, CLASSES)  # sorted into folders, as many scripts do
    return _open_annotated_val(root, class_names)


def _open_annotated_val(root: Path, class_names: tuple[str, ...]) -> FolderSource:
    """Open val/images/NAME.JPEG. Lines of val/val_annotations.txt hold file, class and box, separated by tabs."""
    listing = root / "val" / "val_annotations.txt"
    if not listing.is_file():
        raise DataError(f"{listing} is missing: it gives the classes of val/images")
    numbers = {name: i for i, name in enumerate(class_names)}
    labels: dict[str, int] = {}
    for number, line in enumerate(read_lines(listing), 1):
        fields = line.split("\t")
        if len(fields) < 2 or fields[1] not in numbers:
            raise DataError(
                f"{listing} line {number}: {line[:60]!r}; expected a file name, a tab and a class of wnids.txt"
            )
        labels[fields[0]] = numbers[fields[1]]
    files = set(images_below(root / "val" / "images"))
    if missing := sorted(labels.keys() - files):
        raise DataError(f"{root / 'val' / 'images' / missing[0]} is missing: {listing.name} lists it")
    if unlabelled := sorted(files - labels.keys()):
        raise DataError(f"{root / 'val' / 'images' / unlabelled[0]} has no class: {listing.name} does not list it")
    ordered = sorted(labels)
    paths = [f"val/images/{file}" for file in ordered]
    return FolderSource(root, paths, [labels[file] for file in ordered], CLASSES, class_names)
