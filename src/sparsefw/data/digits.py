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


class Digits(NamedTuple):
    """Images (n, 1, 8, 8) in float32 with mean about 0 and deviation about 1, labels (n,)."""

    images: Tensor
    labels: Tensor


def load_digits(part: str = "train") -> Digits:
    """The first 1,400 images ("train") or the remaining 397 ("test"): different writers, as the file is in their order."""
    if part not in ("train", "test"):
        raise ValueError(f"digits have a train and a test part, not {part!r}")
    with resources.files("sparsefw.data").joinpath("digits.npz").open("rb") as file, np.load(file) as arrays:
        images, labels = arrays["images"], arrays["labels"]
    chosen = slice(0, 1400) if part == "train" else slice(1400, None)
    pixels = (torch.from_numpy(images[chosen]).float() - 4.884) / 6.017
    return Digits(pixels.unsqueeze(1), torch.from_numpy(labels[chosen]).long())
