"""Tiny ImageNet as it is distributed: 200 classes, 64 x 64 pixels, its val part labelled by a text file.

Ya Le, Xuan Yang: Tiny ImageNet Visual Recognition Challenge, CS 231N, Stanford, 2015.
"""

from __future__ import annotations

from pathlib import Path

from sparsefw.data.errors import DataError
from sparsefw.data.folders import FolderSource, class_folders, images_below, subfolders

CLASSES = 200


def _root(folder: Path) -> Path | None:
    return next((place for place in (folder, folder / "tiny-imagenet-200") if (place / "wnids.txt").is_file()), None)


def present(folder: Path) -> bool:
    return _root(folder) is not None


def open_folder(folder: Path, part: str, cache: Path | None) -> FolderSource:
    """The classes are numbered in the order of their WordNet ids, as by everyone else; wnids.txt itself is unordered."""
    root = _root(folder)
    assert root is not None
    class_names = tuple(sorted((root / "wnids.txt").read_text().split()))
    if part == "train":
        if missing := sorted(set(class_names) - set(subfolders(root / "train"))):
            raise DataError(f"{root / 'train' / missing[0]} is missing: wnids.txt lists it")
        return class_folders(root, root / "train", class_names, CLASSES)
    if not (root / "val" / "val_annotations.txt").is_file() and subfolders(root / "val") not in ([], ["images"]):
        return class_folders(root, root / "val", class_names, CLASSES)  # sorted into classes, as many scripts do
    return _annotated(root, class_names)


def _annotated(root: Path, class_names: tuple[str, ...]) -> FolderSource:
    """val/images/NAME.JPEG, with the class of each in val/val_annotations.txt: file, class, box, separated by tabs."""
    listing = root / "val" / "val_annotations.txt"
    if not listing.is_file():
        raise DataError(f"{listing} is missing: it gives the classes of val/images")
    numbers = {name: i for i, name in enumerate(class_names)}
    labels: dict[str, int] = {}
    for number, line in enumerate(listing.read_text().splitlines(), 1):
        fields = line.split("\t")
        if len(fields) < 2 or fields[1] not in numbers:
            raise DataError(
                f"{listing} line {number}: {line[:60]!r}; expected a file name, a tab and a class of wnids.txt"
            )
        labels[fields[0]] = numbers[fields[1]]
    found = set(images_below(root / "val" / "images"))
    if missing := sorted(labels.keys() - found):
        raise DataError(f"{root / 'val' / 'images' / missing[0]} is missing: {listing.name} lists it")
    if unknown := sorted(found - labels.keys()):
        raise DataError(f"{root / 'val' / 'images' / unknown[0]} has no class: {listing.name} does not list it")
    files = sorted(labels)
    return FolderSource(
        root, [f"val/images/{file}" for file in files], [labels[f] for f in files], CLASSES, class_names
    )
