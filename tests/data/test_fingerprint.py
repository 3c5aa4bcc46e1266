"""Fingerprints: what shows in them, in which words, and how much is read for them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from data.dataset_writers import encoded, picture, put, write
from sparsefw.data import fingerprint as module
from sparsefw.data import open_part
from sparsefw.data.fingerprint import arrays_fingerprint, difference, files_fingerprint


def of_folder(folder: Path) -> dict:
    return {"train": open_part("folder", folder, "train").fingerprint()}


def remove(folder: Path) -> None:
    sorted(folder.rglob("*.*"))[0].unlink()


def replace(folder: Path) -> None:
    sorted(folder.rglob("*.*"))[-1].write_bytes(encoded(picture(30, 1, (17, 19))))


def flip(folder: Path) -> None:
    path = sorted(folder.rglob("*.*"))[-1]
    path.write_bytes(path.read_bytes()[:-1] + b"?")


def rename(folder: Path) -> None:
    path = sorted(folder.rglob("*.*"))[0]
    path.rename(path.with_stem("other"))


def add_a_class(folder: Path) -> None:
    remove(folder)
    put(folder / "new" / "0.png", encoded(picture(0, 0, (8, 8))))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (remove, "the train part has 11 images instead of 12"),
        (replace, "the train part has [0-9,]+ bytes instead of [0-9,]+"),
        (flip, "the train part has as many images, but other content"),
        (rename, "the train part has as many images, but other names or labels"),
        (add_a_class, "the train part has 3 classes instead of 2"),
    ],
)
def test_what_has_changed_is_said(tmp_path, change, words):
    for i in range(12):
        put(tmp_path / "train" / "ab"[i % 2] / f"{i}.png", encoded(picture(i, i % 2, (8, 8))))
    before = of_folder(tmp_path)
    assert difference(before, of_folder(tmp_path)) is None
    change(tmp_path / "train")
    found = difference(before, of_folder(tmp_path))
    assert re.fullmatch(words, found), found


def test_a_part_that_comes_or_goes_is_said():
    part = {"images": 1}
    assert difference({"train": part, "test": part}, {"train": part}) == "there is no test part"
    assert difference({"train": part}, {"train": part, "test": part}) == "there is now a test part"


def test_a_label_or_a_pixel_of_arrays_shows():
    images = np.zeros((20, 4, 4, 1), np.uint8)
    labels = np.arange(20) % 3
    before = {"train": arrays_fingerprint(images, labels, 3)}
    assert "names or labels" in difference(before, {"train": arrays_fingerprint(images, labels[::-1], 3)})
    images[7, 1, 2] = 1
    assert "other content" in difference(before, {"train": arrays_fingerprint(images, labels, 3)})


def test_of_many_and_of_large_files_little_is_read(tmp_path, monkeypatch):
    """The first and the last file, and both ends of a large one, always."""
    monkeypatch.setattr(module, "READ_FILES", 5)
    monkeypatch.setattr(module, "END_BYTES", 10)
    for i in range(100):
        (tmp_path / f"{i:03d}").write_bytes(bytes(100))

    def now() -> object:
        return files_fingerprint(100, 2, (), 100, lambda i: (f"{i:03d}", tmp_path / f"{i:03d}"))

    opened = []
    with monkeypatch.context() as patched:
        patched.setattr(module, "_ends", lambda path: opened.append(path.name) or b"")
        now()
    assert opened == ["000", "025", "050", "074", "099"]
    before = now()
    for file, place, shows in (("000", 0, True), ("099", 99, True), ("099", 50, False), ("001", 0, False)):
        content = bytearray(100)
        content[place] = 1
        (tmp_path / file).write_bytes(content)
        assert (now() != before) == shows
        (tmp_path / file).write_bytes(bytes(100))
    assert now() == before


def test_an_unreadable_file_is_left_to_the_reader(tmp_path):
    write("folder", tmp_path, images=12)
    source = open_part("folder", tmp_path, "train")
    Path(source.name(0)).unlink()
    assert source.fingerprint()["images"] == 12
