"""Every data set in every format: a reader returns the images that were written."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from torch.utils.data import DataLoader, Dataset

from data.dataset_writers import FORMATS, write
from sparsefw.data import DATASETS, DataError, Source, open_part
from sparsefw.data.fingerprint import difference
from sparsefw.data.image_source import FileSource

CASES = [(name, form) for name, forms in FORMATS.items() for form in forms]
# JPEG keeps the smooth pictures of the tests to within a few levels.
LOSSY = {("tinyimagenet", "folder"), ("imagenet", "folder"), ("imagenet", "webdataset")}
NAMED_BY_DATA = {("cifar10", "parquet"), ("cifar100", "parquet"), ("tinyimagenet", "parquet"), ("imagenet", "parquet")}


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def case(request):
    return request.param


def test_every_data_set_is_tested_in_its_formats():
    for name, info in DATASETS.items():
        assert name in FORMATS, f"add the data set {name!r} to FORMATS in tests/data/dataset_writers.py"
        written = {form.partition(".")[0] for form in FORMATS[name]}  # "idx.gz" is another way to write "idx"
        registered = {form.name for form in info.formats}
        assert written == registered, f"FORMATS in tests/data/dataset_writers.py has other formats of {name!r}"
    assert set(FORMATS) == set(DATASETS)


def test_reads_what_was_written(case, tmp_path):
    name, form = case
    written = write(name, tmp_path, format=form, images=11)
    assert set(written) == set(DATASETS[name].parts)
    for part, expected in written.items():
        source = open_part(name, tmp_path, part)
        assert len(source) == len(expected) == 11
        for i, (image, target) in enumerate(expected):
            item = source.load(i)
            assert item.image.dtype == np.uint8
            assert item.image.flags.writeable
            assert item.image.shape == image.shape
            difference = np.abs(item.image.astype(int) - image.astype(int)).max()
            assert difference <= (6 if case in LOSSY else 0)
            if isinstance(target, int):
                assert type(item.target) is int
                assert item.target == target
            else:
                assert item.target.dtype == np.uint8
                assert np.array_equal(item.target, target)


def test_both_parts_have_several_classes_and_differ(case, tmp_path):
    name, form = case
    written = write(name, tmp_path, format=form)
    for samples in written.values():
        assert len({int(label) for _, target in samples for label in np.unique(target)} - {255}) >= 2
    if DATASETS[name].task == "classification":
        assert not any(np.array_equal(a, b) for a, _ in written["train"] for b, _ in written["test"])


def test_classes_are_those_of_the_data_set(case, tmp_path):
    name, form = case
    write(name, tmp_path, format=form)
    source = open_part(name, tmp_path, "train")
    assert source.classes == {"folder": 3}.get(name, DATASETS[name].classes)
    if case in NAMED_BY_DATA or name.startswith("cifar"):
        assert source.class_names == tuple(f"class{i}" for i in range(source.classes))


def test_goes_to_workers(case, tmp_path):
    """A source can be pickled after use, and used in forked processes."""
    name, form = case
    write(name, tmp_path, format=form)
    source = open_part(name, tmp_path, "test")
    first = source.load(0)
    copy = pickle.loads(pickle.dumps(source))
    assert np.array_equal(copy.load(0).image, first.image)
    assert copy.name(5) == source.name(5)
    loader = DataLoader(Images(source), batch_size=None, num_workers=2)
    sums = [int(image.sum()) for image in loader]
    assert sums == [int(source.load(i).image.astype(int).sum()) for i in range(8)]


class Images(Dataset):
    def __init__(self, source: Source) -> None:
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, i: int) -> np.ndarray:
        return self.source.load(i).image.astype(np.int64)


def test_blocks_are_a_partition(case, tmp_path):
    name, form = case
    write(name, tmp_path, format=form, images=11)
    blocks = open_part(name, tmp_path, "train").blocks()
    if blocks is None:
        assert form not in ("parquet", "webdataset")
    else:
        assert [i for block in blocks for i in block] == list(range(11))
        assert len(blocks) > 1


def test_names_are_different_and_name_the_file(case, tmp_path):
    name, form = case
    write(name, tmp_path, format=form)
    source = open_part(name, tmp_path, "train")
    names = [source.name(i) for i in range(8)]
    assert len(set(names)) == 8
    assert all(str(tmp_path) in name for name in names)


def test_fingerprints_and_hashes_follow_the_content_not_the_place(case, tmp_path):
    name, form = case
    for place in ("a", "b"):
        write(name, tmp_path / place, format=form)
    a, b = (open_part(name, tmp_path / place, "train") for place in "ab")
    assert a.fingerprint() == b.fingerprint()
    assert a.fingerprint() != open_part(name, tmp_path / "a", "test").fingerprint()
    if isinstance(a, FileSource):
        assert a.content_hash() == b.content_hash()
        assert a.content_hash() != open_part(name, tmp_path / "a", "test").content_hash()
        flip_a_byte(Path(b.name(0).split(" ")[0]))
        assert a.content_hash() != b.content_hash()
        assert difference({"train": a.fingerprint()}, {"train": b.fingerprint()}) == (
            "the train part has as many images, but other content"
        )


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    "case", [case for case in CASES if case[1] in ("folder", "webdataset") or case[1] == "parquet"], ids="-".join
)
def test_a_corrupt_image_is_named(case, tmp_path):
    name, form = case
    write(name, tmp_path, format=form)
    source = open_part(name, tmp_path, "train")
    path = Path(source.name(2).split(" ")[0])
    if form == "folder":
        path.write_bytes(path.read_bytes()[:-30])
    else:
        damage_image(path)
    source = open_part(name, tmp_path, "train")
    with pytest.raises(DataError, match="is not a readable image") as caught:
        [source.load(i) for i in range(8)]
    message = str(caught.value)
    assert message.startswith(str(path))
    assert {"parquet": " row ", "webdataset": " member "}.get(form, "") in message
    assert "\n" not in message


def damage_image(path: Path) -> None:
    """Make the header of some image unreadable, and nothing else."""
    if path.suffix == ".tar":
        data = path.read_bytes()
        at = data.index(b"\xff\xd8\xff", 100)
        path.write_bytes(data[:at] + b"oops" + data[at + 4 :])
        return
    table = pq.read_table(path)
    column = table.column_names[0]
    rows = table.to_pylist()
    rows[1][column]["bytes"] = b"oops" + rows[1][column]["bytes"][4:]
    pq.write_table(type(table).from_pylist(rows, schema=table.schema), path, row_group_size=3)
