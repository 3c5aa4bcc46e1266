"""Decode image files: always to three channels of eight bits, or to one channel of labels."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

from sparsefw.data.errors import DataError
from sparsefw.limits import IMAGE_PIXELS
from sparsefw.text import one_line

EXTENSIONS = frozenset((".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff", ".gif"))
# The exceptions that Pillow raises for damaged files of the various formats.
_DAMAGE_ERRORS: tuple[type[Exception], ...] = (
    *(OSError, ValueError, SyntaxError, EOFError, IndexError, KeyError, TypeError, struct.error, zlib.error),
    Image.DecompressionBombError,
)


def is_image(name: str) -> bool:
    """Return whether a file name is that of an image; hidden files are none.

    >>> is_image("cat.JPEG"), is_image(".cat.png")
    (True, False)
    """
    return not name.startswith(".") and Path(name).suffix.lower() in EXTENSIONS


def decode_rgb(data: bytes, origin: str) -> np.ndarray:
    """Return uint8, height x width x 3, of an image in any mode: gray, palette, CMYK, 16 bit, transparent (without alpha).

    Args:
        data: the bytes of the file.
        origin: the name of the image in messages.
    """
    try:
        with Image.open(io.BytesIO(data)) as image:
            _check_pixels(image, origin)
            if image.mode == "RGB":
                return np.array(image)
            if image.mode.startswith("I"):  # 16 bits per pixel, which Pillow would clip at 255 instead of scaling
                gray = np.clip(np.array(image) >> 8, 0, 255).astype(np.uint8)
                return np.repeat(gray[:, :, None], 3, axis=2)
            if image.mode != "F":
                # Pillow converts a palette with transparency correctly only by way of RGBA.
                image_or_rgba = image.convert("RGBA") if "transparency" in image.info else image
                return np.array(image_or_rgba.convert("RGB"))
            mode = image.mode
    except _DAMAGE_ERRORS as error:
        raise DataError(f"{origin} is not a readable image: {_reason(error)}") from None
    raise DataError(f"{origin} has pixels of mode {mode}; expected integers of 8 or 16 bits")


def decode_gray(data: bytes, origin: str) -> np.ndarray:
    """Return uint8, height x width x 1, of an image in any mode: its luminance (ITU-R 601)."""
    return np.array(Image.fromarray(decode_rgb(data, origin)).convert("L"))[:, :, None]


def decode_labels(data: bytes, origin: str, class_of_id: np.ndarray) -> np.ndarray:
    """Return uint8, height x width: the class of every pixel of an image of label ids.

    Args:
        data: the bytes of the file.
        origin: the name of the image in messages.
        class_of_id: the class of each of the 256 ids, -1 for ids that must not occur.
    """
    try:
        with Image.open(io.BytesIO(data)) as image:
            _check_pixels(image, origin)
            mode = image.mode
            ids = np.array(image)
    except _DAMAGE_ERRORS as error:
        raise DataError(f"{origin} is not a readable image: {_reason(error)}") from None
    if mode not in ("L", "P"):
        raise DataError(f"{origin} has pixels of mode {mode}; expected label ids in one channel of 8 bits")
    classes = class_of_id[ids]
    if (classes < 0).any():
        largest = int(np.flatnonzero(class_of_id >= 0)[-1])
        raise DataError(f"{origin} holds the label id {ids[classes < 0][0]}; expected 0 to {largest}")
    return classes.astype(np.uint8)


def _check_pixels(image: Image.Image, origin: str) -> None:
    """Raise DataError where an image claims more pixels than are taken into memory; none is decoded yet."""
    if image.width * image.height > IMAGE_PIXELS:
        raise DataError(f"{origin} has {image.width:,} x {image.height:,} pixels; images have at most {IMAGE_PIXELS:,}")


def check_same_size(image: np.ndarray, labels: np.ndarray, origin: str) -> None:
    """Raise DataError unless every pixel has a label."""
    if image.shape[:2] != labels.shape:
        sizes = [f"{h} x {w}" for h, w in (image.shape[:2], labels.shape)]
        raise DataError(f"{origin}: the image has {sizes[0]} pixels, its labels {sizes[1]}; expected the same")


def _reason(error: BaseException) -> str:
    """Return the message of Pillow, without the address of the buffer that some contain."""
    text = one_line(error)
    return "not an image format that is known" if "cannot identify" in text else text
