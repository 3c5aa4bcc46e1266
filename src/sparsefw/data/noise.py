"""Made-up images, for timing where no data are at hand. Nothing can be learnt from them."""

from __future__ import annotations

import numpy as np
from pydantic import PositiveInt

from sparsefw.config_base import Section
from sparsefw.data.batches import generator
from sparsefw.data.source import ArraySource

PARTS = ("train", "test")


class Noise(Section):
    """What the images of the set `noise` are like.

    shape      channels, height and width
    classes    of which every image has one at random
    images     to train on; a tenth as many are there to test on
    """

    shape: tuple[PositiveInt, PositiveInt, PositiveInt] = (3, 32, 32)
    classes: PositiveInt = 10
    images: PositiveInt = 10_000


def open_noise(noise: Noise, part: str) -> ArraySource:
    """Bytes that are uniform in 0 to 255, the same ones every time."""
    channels, height, width = noise.shape
    count = noise.images if part == "train" else max(1, noise.images // 10)
    draw = generator("noise", PARTS.index(part))
    images = draw.integers(0, 256, (count, height, width, channels), np.uint8)
    return ArraySource(images, draw.integers(0, noise.classes, count), noise.classes, origin=f"noise {part}")
