"""MNIST and data sets in its format: idx files, compressed or not.

LeCun, Bottou, Bengio, Haffner: Gradient-based learning applied to document recognition, Proc. IEEE 86 (1998);
Xiao, Rasul, Vollgraf: Fashion-MNIST, arXiv:1708.07747.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np

from sparsefw.data.errors import DataError
from sparsefw.data.files import read_bytes, unpacked
from sparsefw.data.image_source import ArraySource

_PREFIX = {"train": "train", "test": "t10k"}
# Beside the folder itself, those that torchvision makes.
_FOLDERS = (".", "raw", "MNIST/raw", "FashionMNIST/raw")


def _find_file(folder: Path, name: str) -> Path | None:
    with_dot = name.replace("-idx", ".idx")  # as some servers spell it
    spellings = (name, f"{name}.gz", with_dot, f"{with_dot}.gz")
    paths = (folder / inner / spelling for inner in _FOLDERS for spelling in spellings)
    return next((path for path in paths if path.is_file()), None)


def present(folder: Path) -> bool:
    """Return whether a folder holds such files."""
    return any(_find_file(folder, f"{prefix}-images-idx3-ubyte") for prefix in _PREFIX.values())


def open_files(folder: Path, part: str, cache: Path | None) -> ArraySource:
    """Return images of 1 channel with one of ten classes."""
    prefix = _PREFIX[part]
    images = read_idx(_require_file(folder, f"{prefix}-images-idx3-ubyte"), axes=3)
    labels_path = _require_file(folder, f"{prefix}-labels-idx1-ubyte")
    labels = read_idx(labels_path, axes=1)
    if len(images) != len(labels):
        raise DataError(f"{labels_path} holds {len(labels)} labels for {len(images)} images")
    return ArraySource(images[..., None], labels, classes=10, origin=str(labels_path.with_name(f"{prefix}-images")))


def _require_file(folder: Path, name: str) -> Path:
    path = _find_file(folder, name)
    if path is None:
        raise DataError(f"{folder / name} is missing (or the same with .gz)")
    return path


def read_idx(path: Path, axes: int) -> np.ndarray:
    """Return the array of bytes in an idx file, which must have this number of axes.

    The file holds 0, 0, 8 (unsigned bytes), the number of axes, their lengths as big-endian 32-bit integers, and the data.
    """
    data = unpacked(path) if path.suffix == ".gz" else read_bytes(path)
    if not data:
        raise DataError(f"{path} is empty")
    start = 4 + 4 * axes
    if data[:4] != bytes((0, 0, 8, axes)) or len(data) < start:
        raise DataError(
            f"{path} starts with {data[:4].hex(' ')}; an idx file of {axes} axes starts with 00 00 08 0{axes}"
        )
    shape = struct.unpack(f">{axes}I", data[4:start])
    if len(data) - start != math.prod(shape):
        expected = " x ".join(map(str, shape))
        raise DataError(f"{path} holds {len(data) - start} bytes; expected {expected}: it is cut off or damaged")
    return np.frombuffer(data, dtype=np.uint8, offset=start).reshape(shape).copy()
