"""Images as they lie in files, decoded: always three channels of eight bits, or one of labels."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

from sparsefw.data.errors import DataError

EXTENSIONS = frozenset((".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff", ".gif"))
# What Pillow raises for damaged files, format by format.
_DAMAGE: tuple[type[Exception], ...] = (
    *(OSError, ValueError, SyntaxError, EOFError, IndexError, KeyError, TypeError, struct.error, zlib.error),
    Image.DecompressionBombError,
)


def is_image(name: str) -> bool:
    """Whether a file name is that of an image; hidden files are not, whatever their ending."""
    return not name.startswith(".") and Path(name).suffix.lower() in EXTENSIONS


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None


def decode_rgb(data: bytes, where: str) -> np.ndarray:
    """uint8, height x width x 3, of an image in any mode: gray, palette, CMYK, 16 bit, transparent (alpha is dropped)."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            if image.mode == "RGB":
                return np.array(image)
            if image.mode.startswith("I"):  # 16 bits per pixel: Pillow would clip at 255 what is to be scaled
                gray = np.clip(np.array(image, dtype=np.int64) >> 8, 0, 255).astype(np.uint8)
                return np.repeat(gray[:, :, None], 3, axis=2)
            if image.mode != "F":
                # A palette with transparency goes through RGBA, as Pillow asks for.
                opaque = image.convert("RGBA") if "transparency" in image.info else image
                return np.array(opaque.convert("RGB"))
            mode = image.mode
    except _DAMAGE as error:
        raise DataError(f"{where} is not a readable image: {_one_line(error)}") from None
    raise DataError(f"{where} has pixels of mode {mode}; expected integers of 8 or 16 bits")


def decode_labels(data: bytes, where: str, meaning: np.ndarray) -> np.ndarray:
    """uint8, height x width: the classes that an image of label ids stands for.

    `meaning` gives the class of each of the 256 ids, -1 for ids that must not occur.
    """
    try:
        with Image.open(io.BytesIO(data)) as image:
            mode, ids = image.mode, np.array(image)
    except _DAMAGE as error:
        raise DataError(f"{where} is not a readable image: {_one_line(error)}") from None
    if mode not in ("L", "P"):
        raise DataError(f"{where} has pixels of mode {mode}; expected label ids in one channel of 8 bits")
    classes = meaning[ids]
    if (classes < 0).any():
        raise DataError(
            f"{where} holds the label id {ids[classes < 0][0]}; expected 0 to {int(np.flatnonzero(meaning >= 0)[-1])}"
        )
    return classes.astype(np.uint8)


def same_size(image: np.ndarray, labels: np.ndarray, where: str) -> None:
    """Every pixel has a label."""
    if image.shape[:2] != labels.shape:
        sizes = [f"{h} x {w}" for h, w in (image.shape[:2], labels.shape)]
        raise DataError(f"{where}: the image has {sizes[0]} pixels, its labels {sizes[1]}; expected the same")


def _one_line(error: BaseException) -> str:
    """Pillow's reason, without the address of the buffer it was given."""
    text = " ".join(str(error).split())
    return "not an image format that is known" if "cannot identify" in text else text or type(error).__name__
