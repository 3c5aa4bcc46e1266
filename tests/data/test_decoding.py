"""Decoding whole parts into memory, and the cache on disk."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from data.dataset_writers import encoded, picture, put, write
from sparsefw.data import DataError, decode_images, open_part
from sparsefw.data.cache_entries import content_hash
from sparsefw.data.image_source import Item, Source
from train.harness import is_running


def counted(source: Source) -> tuple[Source, list[int]]:
    """Return the source and the list of indices that were loaded from it so far."""
    loads: list[int] = []
    load = source.load

    def counting(i: int) -> Item:
        loads.append(i)
        return load(i)

    source.load = counting  # type: ignore[method-assign]
    return source, loads


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("name", "form"), [("cifar10", "parquet"), ("cifar10", "binary"), ("mnist", "idx"), ("camvid", "parquet")]
)
def test_images_first_channel_then_rows(name, form, workers, tmp_path):
    written = write(name, tmp_path, format=form)["train"]
    decoded = decode_images(open_part(name, tmp_path, "train"), None, workers, "error")
    assert decoded.images.dtype == np.uint8
    assert decoded.images.flags.c_contiguous
    assert decoded.images.shape == (8, written[0][0].shape[2], *written[0][0].shape[:2])
    for i, (image, target) in enumerate(written):
        for c in range(image.shape[2]):
            assert np.array_equal(decoded.images[i, c], image[:, :, c])
        assert np.array_equal(decoded.targets[i], target)
    assert decoded.targets.dtype == (np.uint8 if name == "camvid" else np.int64)
    assert decoded.skipped == ()


def test_by_processes(tmp_path):
    """With enough images for processes to be used, all images end at their indices."""
    written = write("cifar10", tmp_path, format="parquet", images=700)["train"]
    decoded = decode_images(open_part("cifar10", tmp_path, "train"), None, 2, "error")
    assert decoded.targets.tolist() == [target for _, target in written]
    assert all(np.array_equal(decoded.images[i], image.transpose(2, 0, 1)) for i, (image, _) in enumerate(written))


DECODES = """
import sys
from multiprocessing import active_children
from pathlib import Path
from sparsefw.data import open_part
from sparsefw.data.decoding import _chunk_ranges, _decoded_chunks

source = open_part("cifar10", Path(sys.argv[1]), "train")
chunks = _decoded_chunks(source, _chunk_ranges(source, 2), 2)
next(chunks)
print(*(child.pid for child in active_children()), flush=True)
sys.stdin.read()
"""


def test_processes_that_decode_end_with_a_killed_training(tmp_path):
    write("cifar10", tmp_path, format="parquet", images=700)
    process = subprocess.Popen(
        [sys.executable, "-c", DECODES, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    workers = [int(pid) for pid in process.stdout.readline().split()]
    assert len(workers) == 2
    process.kill()
    process.wait()
    try:
        deadline = time.monotonic() + 30
        while any(is_running(worker) for worker in workers):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        for worker in filter(is_running, workers):
            os.kill(worker, signal.SIGKILL)
        process.communicate()


def damaged_folder(folder: Path, images: int = 6) -> None:
    """Of six images in two classes, the second of each class is not an image."""
    for i in range(images):
        name = folder / "train" / "ab"[i % 2] / f"{i}.png"
        put(name, b"oops" if i in (2, 3) else encoded(picture(i, i % 2, (8, 8))))


def test_corrupt_images_are_skipped_and_named(tmp_path):
    damaged_folder(tmp_path)
    source = open_part("folder", tmp_path, "train")  # a: 0 2 4, b: 1 3 5
    with pytest.raises(DataError, match=r"train/a/2.png is not a readable image"):
        decode_images(source, None, 1, "error")
    decoded = decode_images(source, None, 1, "skip")
    assert decoded.skipped == (str(tmp_path / "train/a/2.png"), str(tmp_path / "train/b/3.png"))
    assert decoded.targets.tolist() == [0, 0, 1, 1]
    assert [int(image[0, 0, 0]) for image in decoded.images] == [
        int(picture(i, i % 2, (8, 8))[0, 0, 0]) for i in (0, 4, 1, 5)
    ]


def test_an_entry_with_skipped_images_is_an_error_for_runs_that_do_not_skip(tmp_path):
    damaged_folder(tmp_path / "data")
    source = open_part("folder", tmp_path / "data", "train")
    first = decode_images(source, tmp_path / "cache", 1, "skip")
    with pytest.raises(DataError, match=r"train/a/2.png is not a readable image"):
        decode_images(source, tmp_path / "cache", 1, "error")
    (tmp_path / "data").rename(tmp_path / "moved")
    again = decode_images(open_part("folder", tmp_path / "moved", "train"), tmp_path / "cache", 1, "skip")
    assert again.skipped == (str(tmp_path / "moved/train/a/2.png"), str(tmp_path / "moved/train/b/3.png"))
    assert np.array_equal(again.images, first.images)
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_only_corrupt_images(tmp_path):
    for name in ("a/0.png", "b/0.png"):
        put(tmp_path / "train" / name, b"oops")
    with pytest.raises(DataError, match="all others are corrupt"):
        decode_images(open_part("folder", tmp_path, "train"), None, 1, "skip")


@pytest.mark.parametrize("on_corrupt", ["error", "skip"])
def test_different_sizes_must_be_streamed(on_corrupt, tmp_path):
    put(tmp_path / "train/a/0.png", encoded(picture(0, 0, (8, 8))))
    put(tmp_path / "train/b/0.png", encoded(picture(0, 0, (8, 9))))
    with pytest.raises(DataError, match=r"b/0.png has 8 x 9 pixels, other images have 8 x 8: .* must be streamed"):
        decode_images(open_part("folder", tmp_path, "train"), None, 1, on_corrupt)


def test_arrays_need_no_cache(tmp_path):
    write("mnist", tmp_path / "data")
    decode_images(open_part("mnist", tmp_path / "data", "train"), tmp_path / "cache", 1, "error")
    assert not (tmp_path / "cache").exists()


@pytest.fixture
def cached(tmp_path):
    """CIFAR-10 in Parquet, decoded into a cache."""
    write("cifar10", tmp_path / "data", format="parquet")
    decoded = decode_images(open_part("cifar10", tmp_path / "data", "train"), tmp_path / "cache", 1, "error")
    (entry,) = (tmp_path / "cache").iterdir()
    return tmp_path, entry, decoded


def read(tmp_path: Path) -> tuple[np.ndarray, int]:
    """Return the images, and how many of them were decoded."""
    source, loads = counted(open_part("cifar10", tmp_path / "data", "train"))
    return decode_images(source, tmp_path / "cache", 1, "error").images, len(set(loads))


def test_the_second_time_nothing_is_decoded(cached):
    tmp_path, _, decoded = cached
    images, loads = read(tmp_path)
    assert loads == 0
    assert np.array_equal(images, decoded.images)
    assert images.flags.writeable


def test_the_key_changes_with_one_byte(cached):
    """In the footer, where no pixel depends on it."""
    tmp_path, _, _ = cached
    path = tmp_path / "data" / "train-00000-of-00002.parquet"
    data = path.read_bytes()
    path.write_bytes(data.replace(b"parquet-cpp", b"parquet-cqp"))
    assert sum(a != b for a, b in zip(data, path.read_bytes(), strict=True)) == 1
    assert read(tmp_path)[1] == 8
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_the_key_does_not_change_with_time_or_place(cached):
    tmp_path, _, _ = cached
    for path in (tmp_path / "data").iterdir():
        os.utime(path, (1, 1))
    (tmp_path / "data").rename(tmp_path / "other")
    (tmp_path / "data").mkdir()
    (tmp_path / "other").rename(tmp_path / "data" / "cifar10")
    assert read(tmp_path)[1] == 0


@pytest.mark.parametrize("file", ["images.npy", "targets.npy", "about.json"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "gone", "folder"])
def test_a_damaged_entry_is_made_again(file, damage, cached):
    tmp_path, entry, decoded = cached
    path = entry / file
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()
    if damage == "folder":
        path.mkdir()
    elif damage != "gone":
        path.write_bytes({"cut": bytes(data[:-3]), "flipped": bytes(data), "empty": b""}[damage])
    images, loads = read(tmp_path)
    assert loads == 8
    assert np.array_equal(images, decoded.images)
    assert read(tmp_path)[1] == 0
    assert list((tmp_path / "cache").iterdir()) == [entry]  # nothing is left beside it


def test_pickles_in_a_cache_are_not_read(cached, tmp_path):
    """Even where the hash is right: arrays of objects are refused, and the entry is made again."""
    _, entry, _ = cached
    np.save(entry / "targets.npy", np.array([Bomb(tmp_path / "mark")], dtype=object), allow_pickle=True)
    about = json.loads((entry / "about.json").read_text())
    names = ("images.npy", "targets.npy")
    about["hash"] = content_hash(("decoded", ()), ((name, entry / name) for name in names))
    (entry / "about.json").write_text(json.dumps(about))
    assert read(tmp_path)[1] == 8
    assert not (tmp_path / "mark").exists()


class Bomb:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return os.system, (f"touch {self.mark}",)


def test_a_full_disk_leaves_no_entry(cached, monkeypatch):
    tmp_path, entry, _ = cached
    shutil.rmtree(entry)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(DataError, match=r"cannot write the cache .*: No space left on device"):
        read(tmp_path)
    assert list((tmp_path / "cache").iterdir()) == []


def test_leftovers_of_killed_processes_are_removed_whatever_their_entry(cached):
    tmp_path, entry, _ = cached
    shutil.rmtree(entry)
    for name in (f".{entry.name[:50]}.01234567.new", ".another.89abcdef.new", "x.new"):
        put(entry.parent / name / "images.npy", b"half")
        put(entry.parent / name / ".sparsefw-lock", b"")
    read(tmp_path)
    assert {path.name for path in entry.parent.iterdir()} == {entry.name, "x.new"}


def test_a_cache_that_cannot_be_a_folder(cached):
    tmp_path, _, _ = cached
    source = open_part("cifar10", tmp_path / "data", "train")
    put(tmp_path / "file", b"")
    with pytest.raises(DataError, match="cannot write the cache"):
        decode_images(source, tmp_path / "file", 1, "error")


def one_process(folder: str, sums) -> None:
    tmp_path = Path(folder)
    for _ in range(5):
        images, _ = read(tmp_path)
        sums.put(int(images.astype(np.int64).sum()))


def test_several_processes_at_once(cached):
    """While one of them keeps damaging the entry."""
    tmp_path, entry, decoded = cached
    context = multiprocessing.get_context("fork")
    sums = context.Queue()
    processes = [context.Process(target=one_process, args=(str(tmp_path), sums)) for _ in range(3)]
    for process in processes:
        process.start()
    for _ in range(20):
        with contextlib.suppress(OSError):  # the entry is being replaced
            (entry / "images.npy").write_bytes(b"damaged")
        time.sleep(0.02)
    results = [sums.get(timeout=60) for _ in range(15)]
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert set(results) == {int(decoded.images.astype(np.int64).sum())}
