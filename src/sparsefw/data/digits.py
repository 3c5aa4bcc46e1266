"""Handwritten digits: 1,797 images of 8 x 8 pixels with values 0 to 16, shipped with the package.

E. Alpaydin, C. Kaynak: Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998,
https://doi.org/10.24432/C50P49, licence CC BY 4.0 (the 1,797 images of its test part).
"""

from __future__ import annotations

from importlib import resources
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sparsefw.data.errors import DataError
from sparsefw.data.source import ArraySource

MEAN, STD = 4.884, 6.017  # of pixel values 0 to 16
SCALE = 15  # 16 levels, spread over a byte: 0, 15, ..., 240


class Digits(NamedTuple):
    """Images (n, 1, 8, 8) in float32 with mean about 0 and deviation about 1, labels (n,)."""

    images: Tensor
    labels: Tensor


def load_digits(part: str = "train") -> Digits:
    """The first 1,400 images ("train") or the remaining 397 ("test"): different writers, as the file is in their order."""
    images, labels = _arrays(part)
    pixels = (torch.from_numpy(images).float() - MEAN) / STD
    return Digits(pixels.unsqueeze(1), torch.from_numpy(labels).long())


def open_digits(part: str = "train") -> ArraySource:
    """The same images as bytes, their values times SCALE."""
    images, labels = _arrays(part)
    names = tuple(map(str, range(10)))
    return ArraySource(images[..., None].astype(np.uint8) * SCALE, labels, 10, names, f"digits {part}")


def _arrays(part: str) -> tuple[np.ndarray, np.ndarray]:
    if part not in ("train", "test"):
        raise DataError(f"digits have a train and a test part, not {part!r}")
    with resources.files("sparsefw.data").joinpath("digits.npz").open("rb") as file, np.load(file) as arrays:
        images, labels = arrays["images"], arrays["labels"]
    chosen = slice(0, 1400) if part == "train" else slice(1400, None)
    return images[chosen], labels[chosen]
