"""The registry of data sets: facts, folders that are searched, and messages where files are missing."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from data.dataset_writers import FORMATS, write
from sparsefw.data import (
    DATASETS,
    ArraySource,
    DataError,
    dataset,
    decode_images,
    find_data_folder,
    load_digits,
    open_part,
)

NAMES = [name for name, info in DATASETS.items() if info.formats]


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch):
    monkeypatch.delenv("SPARSEFW_DATA", raising=False)


@pytest.mark.parametrize("info", DATASETS.values(), ids=lambda info: info.name)
def test_records_are_complete(info):
    channels = info.shape[0]
    assert len(info.mean) == len(info.std) == channels
    assert all(0 < value < 1 for value in (*info.mean, *info.std))
    assert info.parts in (("train", "test"), ("train", "val", "test"))
    assert (info.ignore_label == 255) == (info.task == "segmentation")
    for text in (info.files, info.obtain, info.description):
        assert text
        assert "\n" not in text


def test_the_facts():
    facts = {name: (info.classes, info.shape, info.resident) for name, info in DATASETS.items()}
    assert facts == {
        "digits": (10, (1, 8, 8), True),
        "mnist": (10, (1, 28, 28), True),
        "fashion-mnist": (10, (1, 28, 28), True),
        "cifar10": (10, (3, 32, 32), True),
        "cifar100": (100, (3, 32, 32), True),
        "tinyimagenet": (200, (3, 224, 224), True),
        "imagenet": (1000, (3, 224, 224), False),
        "cityscapes": (19, (3, 713, 713), False),
        "camvid": (11, (3, 360, 480), True),
        "folder": (None, (3, 224, 224), False),
        "noise": (10, (3, 32, 32), True),
    }


def test_unknown_names():
    with pytest.raises(DataError, match=r"there is no data set 'cifar-10'; did you mean 'cifar10'\?"):
        dataset("cifar-10")
    with pytest.raises(DataError, match="there is no data set 'xyz'; known are digits, mnist"):
        dataset("xyz")


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_part(name, tmp_path):
    write(name, tmp_path)
    with pytest.raises(DataError, match=f"{name} has no part 'dev'; it has train,"):
        open_part(name, tmp_path, "dev")


@pytest.mark.parametrize("name", NAMES)
def test_the_folder_itself_or_the_one_of_its_name(name, tmp_path, monkeypatch):
    write(name, tmp_path / name)
    info = dataset(name)
    assert find_data_folder(info, tmp_path / name) == tmp_path / name
    if name == "folder":  # any folder with folders in it is a data set: only what is given counts
        return
    assert find_data_folder(info, tmp_path) == tmp_path / name
    monkeypatch.setenv("SPARSEFW_DATA", str(tmp_path))
    assert find_data_folder(info, None) == tmp_path / name
    monkeypatch.setenv("SPARSEFW_DATA", str(tmp_path / name))
    assert find_data_folder(info, None) == tmp_path / name
    assert len(open_part(name, None, "train")) == 8


def test_a_given_folder_takes_precedence_over_the_environment(tmp_path, monkeypatch):
    write("mnist", tmp_path / "a", images=3)
    write("mnist", tmp_path / "b", images=4)
    monkeypatch.setenv("SPARSEFW_DATA", str(tmp_path / "a"))
    assert len(open_part("mnist", None, "train")) == 3
    assert len(open_part("mnist", tmp_path / "b", "train")) == 4


def test_data_sets_with_the_same_file_names_are_kept_apart(tmp_path):
    write("mnist", tmp_path, images=3)
    write("fashion-mnist", tmp_path / "fashion-mnist", images=4)
    assert len(open_part("mnist", tmp_path, "train")) == 3
    assert len(open_part("fashion-mnist", tmp_path, "train")) == 4


@pytest.mark.parametrize("name", NAMES)
def test_missing_data_end_in_one_line(name, tmp_path, monkeypatch):
    info = dataset(name)
    messages = []
    for given in (None, tmp_path, tmp_path / "nowhere"):
        with pytest.raises(DataError) as caught:
            open_part(name, given, "train")
        messages.append(str(caught.value))
    monkeypatch.setenv("SPARSEFW_DATA", str(tmp_path))
    with pytest.raises(DataError) as caught:
        open_part(name, None, "train")
    messages.append(str(caught.value))
    for message in messages:
        assert message.startswith(f"{name}: ")
        assert info.files in message
        assert info.obtain in message
        assert "\n" not in message
    assert "SPARSEFW_DATA" in messages[0]
    assert "--data" in messages[0]
    assert f"{tmp_path} or {tmp_path / name}" in messages[1]
    assert f"{tmp_path / 'nowhere'} (from --data) is not a folder" in messages[2]


def test_other_folders_are_no_data_set(tmp_path):
    """No data set is found in the folder of another, except for those with the same file names."""
    names = [name for name in NAMES if name not in ("camvid", "folder")]  # Parquet files all have the same names
    for name in NAMES:
        write(name, tmp_path / "all" / name, format=FORMATS[name][0])
    for name in names:
        others = [
            other for other in (*names, "folder") if other != name and dataset(name).present(tmp_path / "all" / other)
        ]
        expected = {"mnist": ["fashion-mnist"], "fashion-mnist": ["mnist"], "imagenet": ["folder"]}
        assert others == expected.get(name, [])


# --- digits


def test_digits_need_no_folder(tmp_path):
    for given in (None, tmp_path / "nowhere"):
        source = open_part("digits", given, "train")
        assert isinstance(source, ArraySource)
        assert len(source) == 1400
    assert len(open_part("digits", None, "test")) == 397


@pytest.mark.parametrize("part", ["train", "test"])
def test_digits_normalised_are_those_of_load_digits(part):
    info = dataset("digits")
    decoded = decode_images(open_part("digits", None, part), None, 1, "error")
    pixels = (torch.from_numpy(decoded.images).float() / 255 - info.mean[0]) / info.std[0]
    images, labels = load_digits(part)
    assert torch.allclose(pixels, images, atol=1e-6)
    assert decoded.targets.tolist() == labels.tolist()


def test_the_first_digit():
    """A zero; the first row of its picture is 0 0 5 13 9 1 0 0, in sixteenths."""
    item = open_part("digits", None, "train").load(0)
    assert item.target == 0
    assert item.image.shape == (8, 8, 1)
    assert item.image[0, :, 0].tolist() == [0, 0, 75, 195, 135, 15, 0, 0]


def test_a_part_that_digits_do_not_have():
    for call in (lambda: load_digits("val"), lambda: open_part("digits", None, "val")):
        with pytest.raises(ValueError, match="'val'"):
            call()


# --- arrays


@pytest.mark.parametrize(
    ("images", "targets", "reason"),
    [
        (
            np.zeros((2, 4, 4, 1)),
            np.zeros(2, int),
            "images are uint8 of n x height x width x channels, not float64 of 2 x 4 x 4",
        ),
        (np.zeros((2, 4, 4), np.uint8), np.zeros(2, int), "not uint8 of 2 x 4 x 4"),
        (np.zeros((2, 4, 4, 1), np.uint8), np.zeros(3, int), r"one integer label per image \(2\), not int64 of 3"),
        (np.zeros((2, 4, 4, 1), np.uint8), np.zeros(2), "not float64 of 2"),
        (np.zeros((0, 4, 4, 1), np.uint8), np.zeros(0, int), "holds no images"),
        (np.zeros((2, 4, 4, 1), np.uint8), np.array([0, 5]), "image 1 has label 5; labels are 0 to 4"),
    ],
)
def test_arrays_are_checked(images, targets, reason):
    with pytest.raises(DataError, match=f"^here: .*{reason}"):
        ArraySource(images, targets, 5, origin="here")


def test_data_errors_travel_between_processes():
    error = pickle.loads(pickle.dumps(DataError("one line")))
    assert isinstance(error, DataError)
    assert str(error) == "one line"


def test_importing_the_package_reads_no_image_library():
    code = "import sys, sparsefw; print([m for m in ('PIL', 'pyarrow', 'sparsefw.data') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parent
    )
    assert done.stdout.strip() == "[]"
