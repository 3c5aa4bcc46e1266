"""Opening data sets by name: their parts, and the messages for settings that do not fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from data.dataset_writers import encoded, picture, put, write
from data.open_datasets import opened, rows, whole
from sparsefw.config_base import ConfigError, parse
from sparsefw.data import DataError
from sparsefw.data.loaders import DataConfig
from sparsefw.user_cache import cache_folder


def test_facts_about_an_opened_data_set(tmp_path):
    write("cifar100", tmp_path / "cifar100", format="parquet")
    write("camvid", tmp_path / "camvid")
    data = opened("cifar100", tmp_path)
    assert (data.task, data.classes, data.shape, data.ignore_label) == ("classification", 100, (3, 32, 32), None)
    data = opened("camvid", tmp_path, size=(24, 32))
    assert (data.task, data.classes, data.shape, data.ignore_label) == ("segmentation", 11, (3, 24, 32), 255)


def test_an_unknown_data_set(tmp_path):
    with pytest.raises(DataError, match=r"there is no data set 'cifar'; did you mean 'cifar10'\?"):
        opened("cifar", tmp_path)


@pytest.mark.parametrize("augment", [{"crop": 4}, {"rotation": 10}])
def test_augmentation_that_streaming_cannot_do(augment, tmp_path):
    write("imagenet", tmp_path / "imagenet")
    write("cifar10", tmp_path / "cifar10")
    for name, kind in (("imagenet", None), ("cifar10", False)):
        with pytest.raises(DataError, match=f"crop and rotation need images in memory, but {name} is streamed"):
            opened(name, tmp_path, resident=kind, augment=augment)
    opened("cifar10", tmp_path, augment=augment)


def test_zoom_is_for_label_maps(tmp_path):
    write("cifar10", tmp_path)
    for kind in (True, False):
        with pytest.raises(DataError, match="zoom is for label maps, but cifar10 has classes; use resized_crop"):
            opened("cifar10", tmp_path, resident=kind, augment={"zoom": (1.0, 2.0)})


def test_a_batch_larger_than_the_set(tmp_path):
    write("cifar10", tmp_path, format="parquet", images=10)
    for kind in (True, False):
        with pytest.raises(DataError, match=r"data.batch_size=10: cifar10 has 9 images to train on; take at most that"):
            opened("cifar10", tmp_path, batch_size=10, validation=0.1, resident=kind)
        assert len(list(opened("cifar10", tmp_path, batch_size=10, resident=kind).train.training(0, 0, 10))) == 1


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({}, "name is missing"),
        ({"name": "digits", "batch_size": 0}, "batch_size=0"),
        ({"name": "digits", "validation": 1.0}, "validation=1.0"),
        ({"name": "digits", "validation": -0.1}, "validation=-0.1"),
        ({"name": "digits", "size": [0, 8]}, "size.0=0"),
        ({"name": "digits", "on_corrupt": "ignore"}, "on_corrupt='ignore'"),
        ({"name": "digits", "batchsize": 3}, "did you mean 'batch_size'"),
        ({"name": "digits", "augment": {"crops": 3}}, "unknown key 'augment.crops'; did you mean 'crop'"),
    ],
)
def test_wrong_settings_are_refused(values, reason):
    with pytest.raises(ConfigError, match=f"^data: .*{reason}"):
        parse(DataConfig, values, "data")


# --- parts


def test_nothing_is_held_out():
    data = opened("digits", None, validation=0.0)
    assert data.validation is None
    assert (len(data.train), len(data.test)) == (1400, 397)


def test_a_tenth_is_held_out_the_same_for_all_seeds_of_training():
    one, other = (opened("digits", None, validation=0.1, seed=seed) for seed in (0, 1))
    assert (len(one.train), len(one.validation)) == (1260, 140)
    assert rows(one.validation.evaluation()) == rows(other.validation.evaluation())
    third = opened("digits", None, validation=0.1, split_seed=1)
    assert rows(third.validation.evaluation()) != rows(one.validation.evaluation())
    assert not {x for x, _ in rows(one.validation.evaluation())} & {x for x, _ in rows(one.train.evaluation())}


@pytest.mark.parametrize("kind", [True, False])
def test_a_data_set_with_a_validation_part(kind, tmp_path):
    """CamVid has one: no training image is held out."""
    write("camvid", tmp_path, images=6)
    write("camvid", tmp_path / "others", images=4)
    (tmp_path / "val-00000-of-00001.parquet").unlink()
    (tmp_path / "others/val-00000-of-00001.parquet").rename(tmp_path / "val-00000-of-00001.parquet")
    data = opened("camvid", tmp_path, validation=0.5, resident=kind)
    assert (len(data.train), len(data.validation), len(data.test)) == (6, 4, 6)
    assert opened("camvid", tmp_path, validation=0.0, resident=kind).validation is None


def test_a_folder_without_test_images(tmp_path):
    for i in range(4):
        put(tmp_path / "one" / "ab"[i % 2] / f"{i}.png", encoded(picture(i, 0, (8, 8))))
        put(tmp_path / "two" / "train" / "ab"[i % 2] / f"{i}.png", encoded(picture(i, 0, (8, 8))))
    for name in ("one", "two"):
        data = opened("folder", tmp_path / name, size=(8, 8))
        assert data.test is None
        assert data.classes == 2
        assert whole(data.train).targets.tolist() == [0, 0, 1, 1]


def test_unreadable_test_images_are_not_ignored(tmp_path):
    write("folder", tmp_path)
    assert len(opened("folder", tmp_path, size=(8, 8)).test) == 8
    put(tmp_path / "test/dog/0.png", encoded(picture(0, 0, (8, 8))))
    with pytest.raises(DataError, match="test/dog is a class without training images"):
        opened("folder", tmp_path, size=(8, 8))


def test_a_data_set_without_its_test_part(tmp_path):
    write("cifar10", tmp_path, format="parquet")
    (tmp_path / "test-00000-of-00001.parquet").unlink()
    with pytest.raises(DataError, match="has no test part"):
        opened("cifar10", tmp_path)


# --- folders


def test_data_are_found_through_the_environment(tmp_path, monkeypatch):
    write("mnist", tmp_path / "mnist", images=5)
    with pytest.raises(DataError, match="SPARSEFW_DATA"):
        opened("mnist", None)
    monkeypatch.setenv("SPARSEFW_DATA", str(tmp_path))
    assert len(opened("mnist", None).train) == 5


def test_decoded_images_are_kept_in_the_cache(tmp_path, cache):
    write("cifar10", tmp_path, format="parquet")
    first = rows(opened("cifar10", tmp_path).train.evaluation())
    entries = sorted((cache / "decoded").iterdir())
    assert len(entries) == 2  # train and test
    assert rows(opened("cifar10", tmp_path).train.evaluation()) == first
    assert sorted((cache / "decoded").iterdir()) == entries


def test_the_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("SPARSEFW_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("SPARSEFW_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "sparsefw"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "sparsefw"
