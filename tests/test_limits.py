"""Files that ask for more memory than they are worth: refused in one line, before the memory is taken."""

from __future__ import annotations

import gzip
import io
import os
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from PIL import Image

from sparsefw import limits
from sparsefw.config_base import ConfigError
from sparsefw.data.errors import DataError
from sparsefw.data.files import read_bytes
from sparsefw.data.idx import read_idx
from sparsefw.data.images import decode_labels, decode_rgb
from sparsefw.report.tables import _inert
from sparsefw.runfolder.read import RunFolderError, read_config
from sparsefw.runfolder.schema import ConfigRecord
from sparsefw.runfolder.write import config_yaml
from sparsefw.train.recipes import load_recipe, read_yaml

# Every line ten times the line before: a gigabyte of entries.
BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join(['*' + a] * 10)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


def assert_cheap(work, message: str, error: type[Exception], most: int = 20_000_000) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(error, match=message) as caught:
            work()
        assert "\n" not in str(caught.value)
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


def test_aliases_in_a_recipe():
    assert_cheap(lambda: read_yaml(BOMB, "r.yaml"), r"r.yaml, line 2: .*aliases \(\*name\) are not taken", ConfigError)


def test_aliases_on_the_command_line():
    changes = ["model.arguments={a: &a 1, b: *a}"]
    with pytest.raises(ConfigError, match="the value is not YAML"):
        load_recipe("digits-resnet-sgd", changes)


def test_aliases_in_a_run_folder(tmp_path):
    (tmp_path / "config.yaml").write_text(f"method: {{name: sgd}}\n{BOMB}")
    assert_cheap(lambda: read_config(tmp_path), "config.yaml is not a configuration", RunFolderError)


def test_run_folders_repeat_values_instead():
    shared = [1, 2]
    assert "*" not in config_yaml(ConfigRecord({"a": shared, "b": shared}))


def test_recipes_that_are_too_long_too_deep_or_no_text(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="has 200,001 characters"):
        read_yaml("#" * (limits.RECIPE_CHARACTERS + 1), "r.yaml")
    with pytest.raises(ConfigError, match="nested too deeply"):
        read_yaml("a: " + "[" * 5000 + "]" * 5000, "r.yaml")
    file = tmp_path / "r.yaml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"r\.yaml: is not text in UTF-8"):
        load_recipe(str(file))


def png(width: int, height: int) -> bytes:
    """A file of some thousand bytes that claims this size."""
    file = io.BytesIO()
    Image.new("L", (1, 1)).save(file, "PNG")
    data = bytearray(file.getvalue())
    data[16:24] = struct.pack(">II", width, height)
    data[29:33] = struct.pack(">I", zlib.crc32(bytes(data[12:29])))
    return bytes(data)


@pytest.mark.parametrize("decode", [decode_rgb, lambda data, origin: decode_labels(data, origin, np.arange(256))])
@pytest.mark.filterwarnings("ignore:Image size")
def test_images_that_claim_a_hundred_million_pixels(decode):
    assert_cheap(
        lambda: decode(png(13_000, 13_000), "a.png"), "a.png has 13,000 x 13,000 pixels; images have at most", DataError
    )


def test_what_is_packed_small_and_unpacks_large(tmp_path, monkeypatch):
    monkeypatch.setattr("sparsefw.data.files.ARRAY_BYTES", 1_000_000)
    file = tmp_path / "train-images-idx3-ubyte.gz"
    file.write_bytes(gzip.compress(bytes(50_000_000)))
    assert_cheap(lambda: read_idx(file, axes=3), "unpacks to more than 1,000,000 bytes", DataError)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_pipes_and_devices_are_no_files(tmp_path):
    os.mkfifo(tmp_path / "a.png")
    for path in (tmp_path / "a.png", tmp_path):
        with pytest.raises(DataError, match="it is a folder, a pipe or a device, not a file"):
            read_bytes(path)


@pytest.mark.parametrize(
    ("cell", "written"),
    [
        ("=1+1", "'=1+1"),
        ("+A1", "'+A1"),
        ("-A1", "'-A1"),
        ("@sum", "'@sum"),
        ("\n=1", "'\n=1"),
        ("-1.5", "-1.5"),
        ("SGD", "SGD"),
        ("", ""),
    ],
)
def test_no_cell_is_a_formula(cell, written):
    assert _inert(cell) == written
