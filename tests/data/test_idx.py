"""The idx files of MNIST and Fashion-MNIST."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from data.dataset_writers import idx_bytes, put, write
from sparsefw.data import DataError, open_part
from sparsefw.data.idx import read_idx


def test_the_header_by_hand(tmp_path):
    put(tmp_path / "x", bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 10, 11, 12, 13, 14, 15]))
    assert read_idx(tmp_path / "x", axes=2).tolist() == [[10, 11, 12], [13, 14, 15]]


@pytest.mark.parametrize("packed", [False, True])
def test_a_cut_off_file_is_named(packed, tmp_path):
    write("mnist", tmp_path, format="idx")
    path = tmp_path / "t10k-images-idx3-ubyte"
    data = path.read_bytes()[:-5]
    path.unlink()
    put(path.with_suffix(".gz") if packed else path, gzip.compress(data) if packed else data)
    name = "t10k-images-idx3-ubyte" + (".gz" if packed else "")
    with pytest.raises(DataError, match=f"{name} holds 6267 bytes; expected 8 x 28 x 28: it is cut off"):
        open_part("mnist", tmp_path, "test")
    assert len(open_part("mnist", tmp_path, "train")) == 8


def test_a_cut_off_gzip_is_named(tmp_path):
    write("mnist", tmp_path, format="idx.gz")
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte.gz is damaged"):
        open_part("mnist", tmp_path, "train")


@pytest.mark.parametrize("data", [b"<html>not found</html>", idx_bytes(np.zeros(8, np.uint8)), bytes([0, 0, 13, 3])])
def test_another_magic_number_is_named(data, tmp_path):
    write("mnist", tmp_path)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(data)
    with pytest.raises(DataError, match="an idx file of 3 axes starts with 00 00 08 03"):
        open_part("mnist", tmp_path, "train")


def test_labels_that_do_not_fit(tmp_path):
    write("mnist", tmp_path)
    labels = tmp_path / "train-labels-idx1-ubyte"
    labels.write_bytes(idx_bytes(np.zeros(7, np.uint8)))
    with pytest.raises(DataError, match="holds 7 labels for 8 images"):
        open_part("mnist", tmp_path, "train")
    labels.write_bytes(idx_bytes(np.full(8, 10, np.uint8)))
    with pytest.raises(DataError, match="image 0 has label 10; labels are 0 to 9"):
        open_part("mnist", tmp_path, "train")
    labels.unlink()
    with pytest.raises(DataError, match="train-labels-idx1-ubyte is missing"):
        open_part("mnist", tmp_path, "train")


@pytest.mark.parametrize("folder", ["raw", "MNIST/raw"])
def test_the_folders_of_torchvision(folder, tmp_path):
    write("mnist", tmp_path / folder)
    assert len(open_part("mnist", tmp_path, "train")) == 8


def test_names_with_a_dot(tmp_path):
    write("mnist", tmp_path)
    for path in list(tmp_path.iterdir()):
        path.rename(tmp_path / path.name.replace("-idx", ".idx"))
    assert len(open_part("mnist", tmp_path, "test")) == 8
