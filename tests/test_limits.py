"""Files that ask for more memory than they are worth: refused in one line, before the memory is taken."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
import tarfile
import tracemalloc
import zipfile
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from fuzz.canary import watched
from fuzz.memory import at_most
from sparsefw import limits
from sparsefw.config_base import ConfigError
from sparsefw.data import DATASETS
from sparsefw.data.errors import DataError
from sparsefw.data.files import read_bytes
from sparsefw.data.idx import read_idx
from sparsefw.data.images import decode_labels, decode_rgb
from sparsefw.data.restricted_pickle import read_pickle
from sparsefw.data.shards import find_shards
from sparsefw.models import build
from sparsefw.models.pretrained import load_weights
from sparsefw.report.tables import _inert
from sparsefw.runfolder.read import RunFolderError, read_config
from sparsefw.runfolder.schema import ConfigRecord
from sparsefw.runfolder.write import config_yaml
from sparsefw.sweep.grids import load_grid
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


def doubled(steps: int, text: bytes, twice: bytes) -> bytes:
    """A pickle that puts a value into two places of the next one, again and again."""
    return b"\x80\x02}X\x01\0\0\0a" + text + b"".join(b"q%c%s" % (i, twice % (i, i)) for i in range(steps)) + b"s."


PICKLES = {
    "a memo of 2 billion places": b"\x80\x02]r\xff\xff\xff\x7f.",
    "bytes of 4 exabytes": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 62),
    "lists of lists": doubled(40, b"]", b"](h%ch%ce"),
    "keys that take for ever to be hashed": b"\x80\x02}" + b")" + b"".join(b"q%ch%c\x86" % (i, i) for i in range(60)) + b"Ns.",
    "names that take for ever to be written": b"\x80\x04}" + doubled(60, b"]", b"](h%ch%ce")[8:-2] + b"\x8c\x01a\x93.",
    "a text that becomes bytes again and again": (
        b"\x80\x02}X\x01\0\0\0a]q\0(c_codecs\nencode\nq\1X" + struct.pack("<I", 100_000) + b"x" * 100_000
        + b"X\x06\0\0\0latin1\x86q\2R" + b"h\1h\2R" * 2000 + b"es."
    ),
    "a shape of texts": (
        b"\x80\x02}X\x01\0\0\0acnumpy\nndarray\n)R(K\1X\1\0\0\0aJ\xff\xff\xff\x7f\x86cnumpy\ndtype\nX\2\0\0\0u1\x85R\x89C\1atbs."
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PICKLES)
def test_pickles_that_ask_for_more_than_they_are(name):
    with watched(), at_most(1 << 29):
        assert_cheap(lambda: read_pickle(PICKLES[name], "batch"), "^batch is refused: ", DataError)


def test_an_array_that_many_keys_share_is_made_once():
    array = pickle.dumps(np.zeros((100, 3072), np.uint8), protocol=2)[2:-1]
    keys = b"".join(b"X\x04\0\0\0%04dh\x7f" % i for i in range(5000))
    content = read_pickle(b"\x80\x02}(X\x01\0\0\0a" + array + b"q\x7f" + keys + b"u.", "batch")
    assert content["0000"] is content["4999"] is content["a"]


def test_an_archive_whose_headers_unpack_large(tmp_path, monkeypatch):
    """The header of a long name says how long it is; everything is unpacked before that."""
    monkeypatch.setattr("sparsefw.data.files.ARRAY_BYTES", 1_000_000)
    member = tarfile.TarInfo("././@LongLink")
    member.type, member.size = tarfile.GNUTYPE_LONGNAME, 50_000_000
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(gzip.compress(member.tobuf() + bytes(50_000_000)))
    read = lambda: DATASETS["cifar10"].open(tmp_path, "test")  # noqa: E731
    assert_cheap(read, r"cifar-10-python\.tar\.gz unpacks to more than 1,000,000 bytes", DataError)


def sparse_member(name: str, size: int) -> bytes:
    """The header of a member that takes no place in the tar, and is `size` bytes of zeros."""
    member = tarfile.TarInfo(name)
    member.type = tarfile.GNUTYPE_SPARSE
    data = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    data[483:495] = b"%011o\0" % size
    data[148:156] = b"        "
    data[148:156] = b"%06o\0 " % sum(data[:512])
    return bytes(data)


@pytest.mark.parametrize("large", ["label", "image"])
def test_sparse_members_of_a_tar(large, tmp_path):
    members = {"a.cls": 1 << 32 if large == "label" else 1, "a.jpg": 1 << 32 if large == "image" else 1}
    file = tmp_path / "imagenet1k-train-0000.tar"
    file.write_bytes(b"".join(sparse_member(name, size) for name, size in members.items()) + bytes(1024))
    assert_cheap(lambda: DATASETS["imagenet"].open(tmp_path, "train"), r"train-0000\.tar member a\.", DataError)


def test_a_shard_that_says_that_there_are_a_trillion(tmp_path):
    (tmp_path / "train-00000-of-999999999999.parquet").touch()
    assert_cheap(lambda: find_shards(tmp_path, ["*"]), "train-00001-of-999999999999.parquet is missing", DataError)
    (tmp_path / "0.tar").touch()
    (tmp_path / f"{10**25}.tar").touch()
    assert_cheap(lambda: find_shards(tmp_path, ["*.tar"]), r"1\.tar is missing", DataError)


def test_a_value_that_a_parquet_file_stores_once_and_repeats(tmp_path, monkeypatch):
    monkeypatch.setattr("sparsefw.data.parquet.ARRAY_BYTES", 20_000_000)
    rows = [{"img": {"bytes": b"x" * 200_000, "path": None}, "fine_label": 1}] * 2000
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.Table.from_pylist(rows)
    pq.write_table(table.set_column(0, "img", table["img"].cast(kind)), tmp_path / "test.parquet")
    assert (tmp_path / "test.parquet").stat().st_size < 100_000
    source = DATASETS["cifar100"].open(tmp_path, "test")
    with pytest.raises(DataError, match=r"test\.parquet: row group 0 unpacks to more than 20,000,000 bytes"):
        source.load(0)


def test_weights_that_are_compressed(tmp_path):
    file = tmp_path / "w.pt"
    torch.save({"weight": torch.zeros(1000, 1000)}, tmp_path / "plain.pt")
    with zipfile.ZipFile(tmp_path / "plain.pt") as plain, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        for name in plain.namelist():
            packed.writestr(name, plain.read(name))
    with pytest.raises(ValueError, match=r"w\.pt: is compressed, which torch\.save does not do"):
        load_weights(torch.nn.Linear(1000, 1000, bias=False), file)


def test_networks_of_a_billion_blocks():
    for name in ("vit_tiny", "wide_resnet"):
        with watched(), pytest.raises(ValueError, match="depth must be a whole number from 1 to 1,000"):
            build(name, depth=10**9 + 6)


def test_a_grid_of_ten_billion_configurations(tmp_path):
    file = tmp_path / "g.yaml"
    values = ", ".join(f"{i / 1000}" for i in range(1, 101))
    settings = "".join(f", {key}: [{values}]" for key in ("lr", "momentum", "weight_decay", "mixup", "label_smoothing"))
    row = f"{{method: {{name: sgd}}, train: {{epochs: 2{settings}}}}}"
    file.write_text(f"recipe: digits-resnet\nkind: filters\nat: [0.5]\nmethods:\n  SGD: {row}\n")
    assert_cheap(lambda: load_grid(str(file)), r"g\.yaml: .* more than 10,000 configurations", ConfigError)


def test_many_keys_are_compared_once():
    """Each with all others would be ten billion comparisons."""
    text = "".join(f"k{i}:\n" for i in range(20_000))
    with watched():
        assert len(read_yaml(text, "r.yaml")) == 20_000


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
