"""Random images, for measuring speed where no data are available. Nothing can be learnt from them."""

from __future__ import annotations

import numpy as np
from pydantic import PositiveInt

from sparsefw.config_base import Section
from sparsefw.data.image_source import ArraySource
from sparsefw.randomness import generator

PARTS = ("train", "test")


class Noise(Section):
    """The images of the data set `noise`.

    shape      channels, height and width
    classes    number of classes; every image has a random one
    images     number of training images; there are a tenth as many test images
    """

    shape: tuple[PositiveInt, PositiveInt, PositiveInt] = (3, 32, 32)
    classes: PositiveInt = 10
    images: PositiveInt = 10_000


def open_noise(noise: Noise, part: str) -> ArraySource:
    """Return images of uniform random bytes, the same in every call.

    >>> len(open_noise(Noise(images=100), "test"))
    10
    """
    channels, height, width = noise.shape
    count = noise.images if part == "train" else max(1, noise.images // 10)
    draw = generator("noise", PARTS.index(part))
    images = draw.integers(0, 256, (count, height, width, channels), np.uint8)
    return ArraySource(images, draw.integers(0, noise.classes, count), noise.classes, origin=f"noise {part}")
