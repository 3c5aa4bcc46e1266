"""CamVid: frames of a drive through Cambridge, in the version of 360 x 480 pixels that is common for segmentation.

Brostow, Fauqueur, Cipolla: Semantic object classes in video, Pattern Recognition Letters 30 (2009). Classes and parts as in
Badrinarayanan, Kendall, Cipolla: SegNet, arXiv:1511.00561.
"""

from __future__ import annotations

import numpy as np

from sparsefw.data.parquet import parquet_format

IGNORE = 255
CLASSES = (
    *("sky", "building", "pole", "road", "pavement", "tree"),
    *("sign", "fence", "car", "pedestrian", "bicyclist"),
)
_VOID = 11
CLASS_OF_ID = np.full(256, -1, dtype=np.int16)
CLASS_OF_ID[: len(CLASSES)] = range(len(CLASSES))
CLASS_OF_ID[_VOID] = IGNORE

FORMAT = parquet_format(
    len(CLASSES),
    {"train": ("train",), "val": ("val", "validation", "valid"), "test": ("test",)},
    class_names=CLASSES,
    targets=("annotation",),
    class_of_id=CLASS_OF_ID,
)
