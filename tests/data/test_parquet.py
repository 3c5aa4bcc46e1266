"""Parquet shards: columns, numbering, row groups."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.dataset_writers import encoded, picture, write, write_parquet
from sparsefw.data import DataError, open_part, parquet
from sparsefw.data.parquet import RowGroups

PNG = encoded(picture(0, 0, (4, 4)))


def rows(count: int, **values) -> list[dict]:
    return [{"image": {"bytes": PNG, "path": None}, "label": i, **values} for i in range(count)]


def test_a_missing_shard_is_named(tmp_path):
    write_parquet(tmp_path, "train", rows(10), 5)
    (tmp_path / "train-00003-of-00005.parquet").unlink()
    with pytest.raises(DataError, match=r"train-00003-of-00005.parquet is missing: the other shards are there"):
        open_part("cifar10", tmp_path, "train")
    (tmp_path / "train-00000-of-00005.parquet").unlink()
    with pytest.raises(DataError, match=r"train-00000-of-00005.parquet is missing \(and 1 more\)"):
        open_part("cifar10", tmp_path, "train")


def test_shards_of_two_downloads_are_not_mixed(tmp_path):
    write_parquet(tmp_path, "train", rows(4), 2)
    write_parquet(tmp_path, "train", rows(4), 1)
    with pytest.raises(DataError, match="shards of 00001 and of 00002 are mixed"):
        open_part("cifar10", tmp_path, "train")


def test_names_with_a_hash_and_without_numbers(tmp_path):
    write_parquet(tmp_path / "a", "train", rows(4), 1)
    (tmp_path / "a" / "train-00000-of-00001.parquet").rename(
        tmp_path / "a" / "train-00000-of-00001-1359597a978bc4fa.parquet"
    )
    assert len(open_part("tinyimagenet", tmp_path / "a", "train")) == 4
    write_parquet(tmp_path / "b", "train", rows(4), 1)
    (tmp_path / "b" / "train-00000-of-00001.parquet").rename(tmp_path / "b" / "train.parquet")
    assert len(open_part("tinyimagenet", tmp_path / "b", "train")) == 4


@pytest.mark.parametrize("spelling", ["validation", "val", "valid", "test"])
def test_spellings_of_the_test_part(spelling, tmp_path):
    write_parquet(tmp_path, spelling, rows(4), 1)
    assert len(open_part("tinyimagenet", tmp_path, "test")) == 4
    with pytest.raises(DataError, match=r"has no train part; expected train-\*.parquet"):
        open_part("tinyimagenet", tmp_path, "train")


def test_the_unlabelled_test_part_of_imagenet_is_not_used(tmp_path):
    write_parquet(tmp_path, "train", rows(4), 1)
    write_parquet(tmp_path, "test", rows(4), 1)
    with pytest.raises(DataError, match="has no test part; expected validation"):
        open_part("imagenet", tmp_path, "test")


@pytest.mark.parametrize("label", [-1, 10, None])
def test_labels_that_are_no_class(label, tmp_path):
    values = [*rows(1), {"image": {"bytes": PNG, "path": None}, "label": label}]
    write_parquet(tmp_path, "train", values, 1)
    source = open_part("cifar10", tmp_path, "train")
    assert source.load(0).target == 0
    with pytest.raises(DataError, match=rf"parquet row 1: label {label}; expected an integer from 0 to 9"):
        source.load(1)


def test_other_columns(tmp_path):
    write_parquet(tmp_path / "a", "train", [{"picture": PNG, "label": 1}], 1)
    with pytest.raises(DataError, match="has the columns picture, label; expected img or image"):
        open_part("cifar10", tmp_path / "a", "train")
    write_parquet(tmp_path / "b", "train", [{"image": {"bytes": PNG, "path": None}, "kind": 1}], 1)
    with pytest.raises(DataError, match="has the columns image, kind; expected fine_label or label"):
        open_part("cifar10", tmp_path / "b", "train")
    write_parquet(tmp_path / "c", "train", rows(1, label="cat"), 1)
    with pytest.raises(DataError, match="column label is string; expected integers"):
        open_part("cifar10", tmp_path / "c", "train")
    write_parquet(tmp_path / "d", "train", [{"image": {"bytes": None, "path": "0.png"}, "label": 1}], 1)
    with pytest.raises(DataError, match="row 0: column image holds no bytes"):
        open_part("cifar10", tmp_path / "d", "train").load(0)


def test_shards_with_different_columns(tmp_path):
    write_parquet(tmp_path, "train", rows(4), 2)
    pq.write_table(pa.table({"image": [PNG], "other": [1]}), tmp_path / "train-00001-of-00002.parquet")
    with pytest.raises(DataError, match=r"train-00001-of-00002.parquet has no column label, unlike train-00000"):
        open_part("cifar10", tmp_path, "train")


def test_images_as_plain_bytes(tmp_path):
    pq.write_table(pa.table({"image": [PNG], "label": [3]}), tmp_path / "train.parquet")
    item = open_part("cifar10", tmp_path, "train").load(0)
    assert item.image.tolist() == picture(0, 0, (4, 4)).tolist()
    assert item.target == 3


def test_damaged_files_are_named(tmp_path):
    write_parquet(tmp_path, "train", rows(9), 1)
    path = tmp_path / "train-00000-of-00001.parquet"
    data = path.read_bytes()
    path.write_bytes(data[:-10])
    with pytest.raises(DataError, match=r"train-00000-of-00001.parquet is not a readable Parquet file"):
        open_part("cifar10", tmp_path, "train")
    path.write_bytes(data)
    source = open_part("cifar10", tmp_path, "train")
    path.write_bytes(data[:4] + bytes(len(data) // 2) + data[4 + len(data) // 2 :])
    with pytest.raises(DataError, match=r"train-00000-of-00001.parquet") as caught:
        source.load(0)
    assert "\n" not in str(caught.value)


def test_no_rows(tmp_path):
    table = pa.table({"image": pa.array([], pa.binary()), "label": pa.array([], pa.int64())})
    pq.write_table(table, tmp_path / "train.parquet")
    with pytest.raises(DataError, match=r"train.parquet holds no rows"):
        open_part("cifar10", tmp_path, "train")


def test_rows_are_counted_within_their_file(tmp_path):
    """Two files of five rows, in row groups of three and two."""
    write_parquet(tmp_path, "train", rows(10), 2)
    source = open_part("cifar10", tmp_path, "train")
    assert source.blocks() == [range(0, 3), range(3, 5), range(5, 8), range(8, 10)]
    assert source.name(4) == f"{tmp_path / 'train-00000-of-00002.parquet'} row 4"
    assert source.name(9) == f"{tmp_path / 'train-00001-of-00002.parquet'} row 4"
    assert [source.load(i).target for i in (9, 0, 5, 4)] == [9, 0, 5, 4]
    with pytest.raises(IndexError):
        source.load(10)


class Table:
    """Stands for a row group of 100 bytes."""

    nbytes = 100


def test_row_groups_in_memory_are_bounded(monkeypatch):
    monkeypatch.setattr(parquet, "MAX_BYTES_IN_MEMORY", 250)
    read = []

    def reading(group: int) -> Table:
        read.append(group)
        return Table()

    groups = RowGroups(reading)
    for group in (0, 1, 0, 2, 0, 1):  # 2 pushes out 1, the one not used for longest
        groups[group]
    assert read == [0, 1, 2, 1]
    monkeypatch.setattr(parquet, "MAX_BYTES_IN_MEMORY", 50)
    groups[7], groups[7]
    assert read == [0, 1, 2, 1, 7]  # one is kept, however large


# --- CamVid


def test_void_is_ignored_and_other_ids_are_errors(tmp_path):
    ids = np.array([[0, 10], [11, 3]], np.uint8)
    image = {"bytes": encoded(np.zeros((2, 2, 3), np.uint8)), "path": None}
    bad = {"bytes": encoded(np.full((2, 2), 12, np.uint8)), "path": None}
    wide = {"bytes": encoded(np.zeros((2, 3), np.uint8)), "path": None}
    values = [{"image": image, "annotation": a} for a in ({"bytes": encoded(ids), "path": None}, bad, wide)]
    write_parquet(tmp_path, "val", values, 1)
    source = open_part("camvid", tmp_path, "val")
    assert source.load(0).target.tolist() == [[0, 10], [255, 3]]
    with pytest.raises(DataError, match="row 1, column annotation holds the label id 12; expected 0 to 11"):
        source.load(1)
    with pytest.raises(DataError, match="row 2: the image has 2 x 2 pixels, its labels 2 x 3"):
        source.load(2)
    assert source.classes == 11
    assert len(source.class_names) == 11


def test_camvid_has_three_parts(tmp_path):
    written = write("camvid", tmp_path, images=4)
    assert {part: len(samples) for part, samples in written.items()} == {"train": 4, "val": 4, "test": 4}
