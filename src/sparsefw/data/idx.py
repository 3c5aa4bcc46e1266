"""MNIST and its likes: idx files, packed or not.

LeCun, Bottou, Bengio, Haffner: Gradient-based learning applied to document recognition, Proc. IEEE 86 (1998);
Xiao, Rasul, Vollgraf: Fashion-MNIST, arXiv:1708.07747.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from sparsefw.data.errors import DataError
from sparsefw.data.images import read_bytes
from sparsefw.data.source import ArraySource

_PREFIX = {"train": "train", "test": "t10k"}
# The file itself or packed; a dot where some servers have one; and the folders that torchvision makes.
_FOLDERS = (".", "raw", "MNIST/raw", "FashionMNIST/raw")


def _file(folder: Path, name: str) -> Path | None:
    spellings = (name, f"{name}.gz", name.replace("-idx", ".idx"), f"{name.replace('-idx', '.idx')}.gz")
    places = (folder / inner / spelling for inner in _FOLDERS for spelling in spellings)
    return next((path for path in places if path.is_file()), None)


def present(folder: Path) -> bool:
    return any(_file(folder, f"{prefix}-images-idx3-ubyte") for prefix in _PREFIX.values())


def open_files(folder: Path, part: str, cache: Path | None) -> ArraySource:
    """Images of 1 channel with one of ten classes."""
    images = read_idx(_needed(folder, f"{_PREFIX[part]}-images-idx3-ubyte"), axes=3)
    labels = read_idx(path := _needed(folder, f"{_PREFIX[part]}-labels-idx1-ubyte"), axes=1)
    if len(images) != len(labels):
        raise DataError(f"{path} holds {len(labels)} labels for {len(images)} images")
    return ArraySource(images[..., None], labels, classes=10, origin=str(path.with_name(f"{_PREFIX[part]}-images")))


def _needed(folder: Path, name: str) -> Path:
    path = _file(folder, name)
    if path is None:
        raise DataError(f"{folder / name} is missing (or the same with .gz)")
    return path


def read_idx(path: Path, axes: int) -> np.ndarray:
    """An array of bytes: 0, 0, 8 (unsigned bytes), the number of axes, their lengths as big-endian 32-bit integers, the data."""
    data = read_bytes(path)
    if path.suffix == ".gz":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{path} is damaged: {error}") from None
    start = 4 + 4 * axes
    if data[:4] != bytes((0, 0, 8, axes)) or len(data) < start:
        raise DataError(
            f"{path} starts with {data[:4].hex(' ')}; an idx file of {axes} axes starts with 00 00 08 0{axes}"
        )
    shape = struct.unpack(f">{axes}I", data[4:start])
    if len(data) - start != math.prod(shape):
        expected = " x ".join(map(str, shape))
        raise DataError(f"{path} holds {len(data) - start} bytes; expected {expected}: it is cut off or damaged")
    return np.frombuffer(bytearray(data[start:]), dtype=np.uint8).reshape(shape)
