"""Cityscapes: street scenes of 2048 x 1024 pixels, with 34 label ids, 19 of which are classes.

Cordts et al.: The Cityscapes Dataset for Semantic Urban Scene Understanding, arXiv:1604.01685.
"""

from __future__ import annotations

from pathlib import Path
from typing import final

import numpy as np

from sparsefw.data.errors import DataError
from sparsefw.data.files import read_bytes
from sparsefw.data.image_source import FileSource, Item
from sparsefw.data.images import check_same_size, decode_labels, decode_rgb

IGNORE = 255
CLASSES = {
    7: "road",
    8: "sidewalk",
    11: "building",
    12: "wall",
    13: "fence",
    17: "pole",
    19: "traffic light",
    20: "traffic sign",
    21: "vegetation",
    22: "terrain",
    23: "sky",
    24: "person",
    25: "rider",
    26: "car",
    27: "truck",
    28: "bus",
    31: "train",
    32: "motorcycle",
    33: "bicycle",
}  # label id -> name of the class; classes are numbered in this order

CLASS_OF_ID = np.full(256, IGNORE, dtype=np.int16)
CLASS_OF_ID[list(CLASSES)] = range(len(CLASSES))

_IMAGES = "leftImg8bit"
_LABELS = "gtFine"


@final
class CityscapesSource(FileSource):
    """Pairs of leftImg8bit/PART/CITY/NAME_leftImg8bit.png and gtFine/PART/CITY/NAME_gtFine_labelIds.png."""

    def __init__(self, root: Path, part: str) -> None:
        super().__init__(len(CLASSES), tuple(CLASSES.values()))
        self._root = root
        pattern = f"{_IMAGES}/{part}/*/*_{_IMAGES}.png"
        self._scenes = sorted(
            str(path.relative_to(root)) for path in root.glob(pattern) if not path.name.startswith(".")
        )
        if not self._scenes:
            raise DataError(f"{root} has no images {pattern.replace('*/*', 'CITY/NAME')}")
        for i in range(len(self)):
            if not self._labels(i).is_file():
                raise DataError(f"{self._labels(i)} is missing: the labels of {self.name(i)}")

    def __len__(self) -> int:
        return len(self._scenes)

    def load(self, i: int) -> Item:
        image = decode_rgb(read_bytes(self._root / self._scenes[i]), self.name(i))
        labels = decode_labels(read_bytes(self._labels(i)), str(self._labels(i)), CLASS_OF_ID)
        check_same_size(image, labels, self.name(i))
        return Item(image, labels)

    def name(self, i: int) -> str:
        return str(self._root / self._scenes[i])

    def facts(self) -> tuple[object, ...]:
        return ("cityscapes",)

    def file_count(self) -> int:
        return 2 * len(self)

    def file(self, i: int) -> tuple[str, Path]:
        path = self._labels(i // 2) if i % 2 else self._root / self._scenes[i // 2]
        return str(path.relative_to(self._root)), path

    def _labels(self, i: int) -> Path:
        scene = self._scenes[i].removeprefix(_IMAGES).removesuffix(f"_{_IMAGES}.png")
        return self._root / f"{_LABELS}{scene}_{_LABELS}_labelIds.png"


def present(folder: Path) -> bool:
    """Return whether a folder holds images or labels of Cityscapes."""
    return (folder / _IMAGES).is_dir() or (folder / _LABELS).is_dir()


def open_folder(folder: Path, part: str, cache: Path | None) -> CityscapesSource:
    """Open a part. The test part is Cityscapes' val, as in the literature: the labels of its own test part are not public."""
    return CityscapesSource(folder, "train" if part == "train" else "val")
