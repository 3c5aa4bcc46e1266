"""Cityscapes: pairs of files, and the class of every label id."""

from __future__ import annotations

import numpy as np
import pytest

from data.dataset_writers import encoded, put, write
from sparsefw.data import DATASETS, DataError, open_part


def test_label_ids_become_classes(tmp_path):
    """Of the 34 ids these 19 count; among the others are 0 (unlabeled), 9 (parking), 29 (caravan), 255."""
    ids = np.array(
        [
            [7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33],
            [0, 1, 2, 3, 4, 5, 6, 9, 10, 14, 15, 16, 18, 29, 30, 34, 100, 254, 255],
        ],
        np.uint8,
    )
    put(tmp_path / "leftImg8bit/val/ulm/ulm_0_1_leftImg8bit.png", encoded(np.zeros((2, 19, 3), np.uint8)))
    put(tmp_path / "gtFine/val/ulm/ulm_0_1_gtFine_labelIds.png", encoded(ids))
    labels = open_part("cityscapes", tmp_path, "test").load(0).target
    assert labels[0].tolist() == list(range(19))
    assert labels[1].tolist() == [255] * 19
    assert DATASETS["cityscapes"].ignore_label == 255


def test_class_names(tmp_path):
    write("cityscapes", tmp_path)
    names = open_part("cityscapes", tmp_path, "train").class_names
    assert (names[0], names[10], names[13], names[18]) == ("road", "sky", "car", "bicycle")


def test_missing_labels_are_named(tmp_path):
    write("cityscapes", tmp_path)
    path = tmp_path / "gtFine/train/bochum/bochum_000003_000019_gtFine_labelIds.png"
    path.unlink()
    with pytest.raises(DataError, match=f"^{path} is missing: the labels of .*bochum_000003_000019_leftImg8bit.png"):
        open_part("cityscapes", tmp_path, "train")
    assert len(open_part("cityscapes", tmp_path, "test")) == 8


def test_a_missing_archive(tmp_path):
    (tmp_path / "gtFine").mkdir()
    with pytest.raises(DataError, match=r"has no images leftImg8bit/val/CITY/NAME_leftImg8bit.png"):
        open_part("cityscapes", tmp_path, "test")


def test_corrupt_labels_and_other_sizes_are_named(tmp_path):
    write("cityscapes", tmp_path)
    source = open_part("cityscapes", tmp_path, "train")
    labels = tmp_path / "gtFine/train/aachen/aachen_000000_000019_gtFine_labelIds.png"
    labels.write_bytes(b"x")
    with pytest.raises(DataError, match=f"^{labels} is not a readable image"):
        source.load(0)
    labels.write_bytes(encoded(np.zeros((5, 5), np.uint8)))
    with pytest.raises(
        DataError, match=r"aachen_000000_000019_leftImg8bit.png: the image has 32 x 64 pixels, its labels 5 x 5"
    ):
        source.load(0)
