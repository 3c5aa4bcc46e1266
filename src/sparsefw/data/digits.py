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
from sparsefw.data.image_source import ArraySource

MEAN, STD = 4.884, 6.017  # of pixel values 0 to 16
SCALE = 15  # spreads the levels 0 to 16 over a byte: 0, 15, ..., 240
TRAINING_IMAGES = 1400  # the first ones; the file is ordered by writer, so the others are by different writers


class Digits(NamedTuple):
    """Images (n, 1, 8, 8) in float32 with a mean of about 0 and a deviation of about 1, and labels (n,)."""

    images: Tensor
    labels: Tensor


def load_digits(part: str = "train") -> Digits:
    """Return the 1,400 images of the "train" part or the 397 of the "test" part, which are by different writers.

    >>> load_digits("test").images.shape
    torch.Size([397, 1, 8, 8])
    """
    images, labels = _read_arrays(part)
    pixels = (torch.from_numpy(images).float() - MEAN) / STD
    return Digits(pixels.unsqueeze(1), torch.from_numpy(labels).long())


def open_digits(part: str = "train") -> ArraySource:
    """Return the same images as bytes, with their values times SCALE."""
    images, labels = _read_arrays(part)
    class_names = tuple(map(str, range(10)))
    return ArraySource(images[..., None].astype(np.uint8) * SCALE, labels, 10, class_names, f"digits {part}")


def _read_arrays(part: str) -> tuple[np.ndarray, np.ndarray]:
    if part not in ("train", "test"):
        raise DataError(f"digits have a train and a test part, not {part!r}")
    with resources.files("sparsefw.data").joinpath("digits.npz").open("rb") as file, np.load(file) as arrays:
        images = arrays["images"]
        labels = arrays["labels"]
    chosen = slice(0, TRAINING_IMAGES) if part == "train" else slice(TRAINING_IMAGES, None)
    return images[chosen], labels[chosen]
