"""WebDataset tars: members, numbering, and the index."""

from __future__ import annotations

import tarfile

import pytest

from data.dataset_writers import add_to_tar, encoded, picture, write
from sparsefw.data import DataError, open_part, webdataset

PNG = encoded(picture(0, 0, (4, 4)))


def tar(path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as file:
        for name, data in members.items():
            add_to_tar(file, name, data)


def opened(folder, part="train", cache=None):
    return open_part("imagenet", folder, part, cache)


def test_members_in_any_order_and_of_other_kinds(tmp_path):
    long = "x" * 120  # longer than the name field of a tar header
    members = {
        "README.md": b"",
        "a/0.json": b"{}",
        "a/0.PNG": PNG,
        "a/0.cls": b"7\n",
        f"{long}.cls": b"999",
        f"{long}.jpeg": PNG,
    }
    tar(tmp_path / "train-0.tar", members)
    source = opened(tmp_path)
    assert [source.load(i).target for i in range(2)] == [7, 999]
    assert source.load(1).image.tolist() == picture(0, 0, (4, 4)).tolist()
    assert source.name(0) == f"{tmp_path / 'train-0.tar'} member a/0.PNG"
    assert source.name(1) == f"{tmp_path / 'train-0.tar'} member {long}.jpeg"


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"0.png": PNG}, r"sample 0 has 0.png; expected one image and one .cls"),
        ({"0.cls": b"1"}, r"sample 0 has 0.cls; expected one image and one .cls"),
        ({"0.png": PNG, "0.jpg": PNG, "0.cls": b"1"}, "sample 0 has 0.png, 0.jpg, 0.cls; expected one image"),
        ({"0.png": PNG, "0.cls": b"cat"}, r"member 0.cls: b'cat'; expected the number of a class"),
        ({"0.png": PNG, "0.cls": b"1000"}, r"member 0.png: label 1000; expected an integer from 0 to 999"),
        ({"README": b""}, r"holds no images; expected members KEY.jpg"),
    ],
)
def test_other_contents(members, reason, tmp_path):
    tar(tmp_path / "train-0.tar", members)
    with pytest.raises(DataError, match=reason):
        opened(tmp_path)


def test_damaged_tars_are_named(tmp_path):
    write("imagenet", tmp_path, format="webdataset")
    path = tmp_path / "imagenet1k-train-0000.tar"
    data = path.read_bytes()
    source = opened(tmp_path)
    path.write_bytes(data[:1400])
    with pytest.raises(DataError, match=r"imagenet1k-train-0000.tar member train/000003.jpg is cut off"):
        source.load(3)
    with pytest.raises(DataError, match=r"imagenet1k-train-0000.tar"):
        opened(tmp_path)
    path.write_bytes(b"<html>" * 1000)
    with pytest.raises(DataError, match=r"imagenet1k-train-0000.tar is not a readable tar"):
        opened(tmp_path)


def test_a_gap_in_the_numbers_is_named(tmp_path):
    for i in (0, 1, 3):
        tar(tmp_path / f"train-{i:04d}.tar", {"0.png": PNG, "0.cls": b"1"})
    with pytest.raises(DataError, match=r"train-0002.tar is missing: the other shards are there"):
        opened(tmp_path)


def test_the_index_is_cached_and_replaced_where_files_changed(tmp_path, monkeypatch):
    write("imagenet", tmp_path / "data", format="webdataset")
    scans = []
    scan = webdataset._scan
    monkeypatch.setattr(webdataset, "_scan", lambda files: scans.append(len(files)) or scan(files))
    cache = tmp_path / "cache"
    expected = [opened(tmp_path / "data", cache=cache).load(i).target for i in range(8)]
    assert expected == [0, 1, 2, 3, 0, 1, 2, 3]
    assert scans == [2]
    source = opened(tmp_path / "data", cache=cache)
    assert [source.load(i).target for i in range(8)] == expected
    assert scans == [2]
    (kept,) = cache.iterdir()
    data = bytearray(kept.read_bytes())
    for damaged in (b"", bytes(data[: len(data) // 2]), bytes(data[:80] + b"\xff\xff" + data[82:])):
        kept.write_bytes(damaged)
        source = opened(tmp_path / "data", cache=cache)
        assert [source.load(i).target for i in range(8)] == expected
        assert kept.read_bytes() == data
    assert scans == [2, 2, 2, 2]
    tar(tmp_path / "data" / "imagenet1k-train-0001.tar", {"0.png": PNG, "0.cls": b"5"})  # another size and time
    source = opened(tmp_path / "data", cache=cache)
    assert [source.load(i).target for i in range(len(source))] == [0, 1, 2, 3, 5]
    assert scans == [2, 2, 2, 2, 2]


def test_blocks_are_shards(tmp_path):
    write("imagenet", tmp_path, format="webdataset")
    assert opened(tmp_path, "test").blocks() == [range(0, 4), range(4, 8)]
