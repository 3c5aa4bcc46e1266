"""Images in all modes are decoded to three channels of eight bits."""

from __future__ import annotations

import contextlib
import io

import numpy as np
import pytest
from PIL import Image

from sparsefw.data import DataError
from sparsefw.data.images import decode_labels, decode_rgb

RGB = np.array([[[250, 10, 20], [30, 240, 40]]], np.uint8)  # one row of two pixels


def saved(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def palette(**options) -> bytes:
    image = Image.new("P", (2, 1))
    image.putpalette([250, 10, 20, 30, 240, 40] + [0] * 762)
    image.putdata([0, 1])
    return saved(image, **options)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(saved(Image.fromarray(RGB)), RGB, id="rgb"),
        pytest.param(saved(Image.fromarray(RGB).convert("RGBA")), RGB, id="rgba"),
        pytest.param(palette(), RGB, id="palette"),
        pytest.param(palette(transparency=bytes([255, 0])), RGB, id="palette with transparency"),
        pytest.param(saved(Image.fromarray(np.array([[7, 200]], np.uint8))), [[[7] * 3, [200] * 3]], id="gray"),
        pytest.param(
            saved(Image.fromarray(np.array([[7, 200]], np.uint8)).convert("LA")), [[[7] * 3, [200] * 3]], id="la"
        ),
        pytest.param(saved(Image.fromarray(np.array([[False, True]]))), [[[0] * 3, [255] * 3]], id="bits"),
        # 16 bits: the high byte of 0x1234 is 0x12 = 18, that of 0xFFFF is 255.
        pytest.param(
            saved(Image.fromarray(np.array([[0x1234, 0xFFFF]], np.uint16))), [[[18] * 3, [255] * 3]], id="16 bit"
        ),
        pytest.param(saved(Image.fromarray(RGB), "GIF"), None, id="gif"),
        pytest.param(saved(Image.fromarray(RGB), "BMP"), RGB, id="bmp"),
        pytest.param(saved(Image.fromarray(RGB), "WEBP", lossless=True), RGB, id="webp"),
    ],
)
def test_modes(data, expected):
    image = decode_rgb(data, "here")
    assert image.dtype == np.uint8
    assert image.shape == (1, 2, 3)
    assert image.flags.writeable
    if expected is not None:
        assert image.tolist() == np.asarray(expected).tolist()


def test_cmyk():
    """No cyan, full magenta and yellow, no black: red."""
    image = decode_rgb(saved(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG", quality=100), "here")
    assert image.shape == (8, 8, 3)
    assert np.abs(image.astype(int) - [255, 0, 0]).max() <= 2


@pytest.mark.filterwarnings("ignore:.*EXIF data:UserWarning")  # Pillow's, for TIFF
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "TIFF", "WEBP", "BMP"])
def test_cut_off_images_are_errors(kind):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    data = saved(Image.fromarray(noise), kind)
    for length in (0, 10, len(data) // 2, len(data) * 9 // 10):
        with pytest.raises(DataError, match=r"^the name is not a readable image: ") as caught:
            decode_rgb(data[:length], "the name")
        assert "\n" not in str(caught.value)
        assert "0x" not in str(caught.value)


def test_damaged_bytes_never_raise_anything_else():
    data = saved(Image.fromarray(np.arange(16 * 16 * 3, dtype=np.uint8).reshape(16, 16, 3)))
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0xFF
        with contextlib.suppress(DataError):  # some bytes do not matter
            assert decode_rgb(bytes(damaged), "here").dtype == np.uint8


def test_floats_are_refused():
    with pytest.raises(DataError, match="here has pixels of mode F; expected integers"):
        decode_rgb(saved(Image.new("F", (2, 2)), "TIFF"), "here")


def test_labels_are_looked_up():
    meaning = np.full(256, -1, np.int16)
    meaning[[0, 1, 2]] = [5, 255, 0]
    ids = Image.fromarray(np.array([[0, 1], [2, 2]], np.uint8))
    assert decode_labels(saved(ids), "here", meaning).tolist() == [[5, 255], [0, 0]]
    with pytest.raises(DataError, match="here holds the label id 9; expected 0 to 2"):
        decode_labels(saved(Image.new("L", (2, 2), 9)), "here", meaning)
    with pytest.raises(DataError, match="mode RGB; expected label ids in one channel"):
        decode_labels(saved(Image.new("RGB", (2, 2))), "here", meaning)
    with pytest.raises(DataError, match="here is not a readable image"):
        decode_labels(b"x", "here", meaning)


def test_the_indices_of_a_palette_are_the_labels():
    assert decode_labels(palette(), "here", np.arange(256, dtype=np.int16)).tolist() == [[0, 1]]
