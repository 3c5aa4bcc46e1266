"""CIFAR's archives: pickles that cannot run code, and damaged files."""

from __future__ import annotations

import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from data.dataset_writers import python2_pickle, write
from sparsefw.data import DataError, open_part
from sparsefw.data.restricted_pickle import read_pickle


class Exploit:
    """Runs a command when it is unpickled by the standard module."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return os.system, (f"touch {self.mark}",)


class Call:
    """A pickle that calls a function."""

    def __init__(self, function, *arguments) -> None:
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def test_the_exploit_works_on_pickle_itself(tmp_path):
    pickle.loads(pickle.dumps(Exploit(tmp_path / "mark")))
    assert (tmp_path / "mark").exists()


@pytest.mark.parametrize("place", ["test_batch", "batches.meta"])
def test_an_exploit_does_not_run(place, tmp_path):
    write("cifar10", tmp_path)
    mark = tmp_path / "mark"
    path = tmp_path / "cifar-10-batches-py" / place
    path.write_bytes(pickle.dumps({"data": Exploit(mark), "labels": [0]}))
    with pytest.raises(DataError) as caught:
        open_part("cifar10", tmp_path, "test")
    assert not mark.exists()
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "posix.system" in message
    assert "\n" not in message


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    "hostile",
    [
        pytest.param(Call(eval, "1 + 1"), id="eval"),
        pytest.param(Call(getattr, 1, "real"), id="getattr"),
        pytest.param(Call(np.load, "x"), id="numpy"),
        pytest.param(Call(np.frombuffer, b"x"), id="frombuffer"),
        pytest.param(np.array([1, "a", None], dtype=object), id="objects"),
        pytest.param(np.zeros(3), id="floats"),
        pytest.param(np.dtype("u1"), id="dtype"),
        pytest.param(Path("x"), id="path"),
        pytest.param({1, 2}, id="set"),
    ],
)
def test_anything_but_arrays_of_bytes_and_plain_values_is_refused(hostile, protocol):
    with pytest.raises(DataError, match=r"^here is refused: "):
        read_pickle(pickle.dumps({"data": hostile}, protocol=protocol), "here")


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(b"cnumpy\ndtype\n}S'x'\nI1\nsb.", id="state for a class"),
        pytest.param(b"cnumpy\ndtype\n(Nd}S'__init__'\nI1\nsb.", id="attributes of a class"),
        pytest.param(b"}P1\n.", id="persistent id"),
        pytest.param(b"\x82\x01.", id="extension"),
        pytest.param(b"cnumpy.f2py\ncompile\n(tR.", id="f2py"),
        pytest.param(b"\x80\x04\x8c\x05numpy\x8c\x0ddtype.__new__\x93.", id="dotted name"),
        pytest.param(b"(" * 10000 + b"t" * 10000 + b".", id="deep"),
        pytest.param(b"\x80\x04\x8e" + struct.pack("<Q", 1 << 62), id="huge"),
        pytest.param(b"", id="empty"),
        pytest.param(b"I1\n.", id="number"),
        pytest.param(b"\x80\xff.", id="protocol"),
    ],
)
def test_hostile_opcodes_end_in_a_line(code):
    with pytest.raises(DataError, match=r"^here is refused: ") as caught:
        read_pickle(code, "here")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_pickles_of_python_3_are_read(protocol):
    """Repacked archives have them; protocol 2 writes bytes by a call of _codecs.encode."""
    data = np.arange(12, dtype=np.uint8).reshape(2, 6)
    content = {b"data": data, "turned": np.asfortranarray(data), "labels": [3, 4], "name": b"abc"}
    read = read_pickle(pickle.dumps(content, protocol=protocol), "here")
    assert read["data"].tolist() == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]
    assert read["turned"].tolist() == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]
    assert read["labels"] == [3, 4]
    assert read["name"] == "abc"


def test_the_pickles_of_these_tests_are_pickles():
    data = np.arange(6, dtype=np.uint8).reshape(2, 3)
    content = pickle.loads(python2_pickle({"data": data, "labels": [1, 2]}), encoding="bytes")
    assert content[b"data"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert content[b"labels"] == [1, 2]


def test_pixels_are_planes_of_rows(tmp_path):
    """Byte 1024 c + 32 y + x is channel c of the pixel in row y and column x."""
    data = np.zeros((1, 3072), np.uint8)
    data[0, 1024 * 2 + 32 * 5 + 7] = 200
    write("cifar10", tmp_path)
    batch = python2_pickle({"labels": [4], "data": data})
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(batch)
    item = open_part("cifar10", tmp_path, "test").load(0)
    assert item.target == 4
    assert np.argwhere(item.image).tolist() == [[5, 7, 2]]


def test_the_fine_label_of_cifar100_counts(tmp_path):
    """The binary file has a coarse label first."""
    write("cifar100", tmp_path, format="binary")
    record = bytes([19, 42]) + bytes(3072)
    (tmp_path / "cifar-100-binary" / "test.bin").write_bytes(record)
    assert open_part("cifar100", tmp_path, "test").load(0).target == 42


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"labels": [1]}, "no images of 3072 bytes"),
        ({"data": np.zeros((1, 3071), np.uint8), "labels": [1]}, "no images of 3072 bytes"),
        ({"data": np.zeros((1, 3072), np.uint8)}, "no list of 1 integers under 'labels'"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": [1, 2]}, "no list of 1 integers"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": ["a"]}, "no list of 1 integers"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": [10]}, "label 10; labels are 0 to 9"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": [-1]}, "label -1; labels are 0 to 9"),
        ({"data": np.zeros((0, 3072), np.uint8), "labels": []}, "holds no images"),
    ],
)
def test_a_batch_with_other_content(content, reason, tmp_path):
    write("cifar10", tmp_path)
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(python2_pickle(content))
    with pytest.raises(DataError, match=reason):
        open_part("cifar10", tmp_path, "test")


def test_a_missing_batch_is_named(tmp_path):
    write("cifar10", tmp_path)
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").unlink()
    with pytest.raises(DataError, match="data_batch_3 is missing"):
        open_part("cifar10", tmp_path, "train")
    assert len(open_part("cifar10", tmp_path, "test")) == 8


def test_a_cut_off_binary_is_named(tmp_path):
    write("cifar10", tmp_path, format="binary")
    path = tmp_path / "cifar-10-batches-bin" / "test_batch.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"test_batch.bin has 24583 bytes; expected a multiple of 3073"):
        open_part("cifar10", tmp_path, "test")


@pytest.mark.parametrize("kind", ["python", "binary"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "not gzip"])
def test_a_damaged_archive_is_named(kind, damage, tmp_path):
    write("cifar10", tmp_path, format=f"{kind}.tar.gz")
    path = tmp_path / f"cifar-10-{kind}.tar.gz"
    data = path.read_bytes()
    middle = len(data) // 2
    flipped = data[:middle] + bytes(255 - byte for byte in data[middle : middle + 20]) + data[middle + 20 :]
    path.write_bytes({"cut": data[:middle], "flipped": flipped, "not gzip": b"<html>" * 99}[damage])
    with pytest.raises(DataError, match=f"cifar-10-{kind}.tar.gz"):
        open_part("cifar10", tmp_path, "train")


def test_the_extracted_folder_itself_may_be_given(tmp_path):
    write("cifar10", tmp_path)
    assert len(open_part("cifar10", tmp_path / "cifar-10-batches-py", "test")) == 8


def test_of_two_formats_the_first_is_taken(tmp_path):
    """Python archives, binary archives, Parquet."""
    write("cifar10", tmp_path, format="parquet", images=5)
    assert len(open_part("cifar10", tmp_path, "test")) == 5
    write("cifar10", tmp_path, format="binary.tar.gz", images=6)
    assert len(open_part("cifar10", tmp_path, "test")) == 6
    write("cifar10", tmp_path, format="python.tar.gz", images=7)
    assert len(open_part("cifar10", tmp_path, "test")) == 7
    write("cifar10", tmp_path, format="python", images=8)
    assert len(open_part("cifar10", tmp_path, "test")) == 8


def test_cifar10_is_not_taken_for_cifar100(tmp_path):
    write("cifar10", tmp_path, format="parquet")
    with pytest.raises(DataError, match="has 10 classes in its column label; expected 100"):
        open_part("cifar100", tmp_path, "train")
