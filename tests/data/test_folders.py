"""Images in folders: the layouts of ImageNet, of Tiny ImageNet, and of users."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from data.dataset_writers import encoded, picture, put, write
from sparsefw.data import DataError, open_part

PNG = encoded(picture(0, 0, (4, 5)))


def test_nested_files_any_case_hidden_ones_and_others(tmp_path):
    for name in (
        "b/1.PNG",
        "b/deep/er/2.JpG",
        "b/.hidden.png",
        "b/.cache/3.png",
        "b/notes.txt",
        "a/0.jpeg",
        "a/Thumbs.db",
    ):
        put(tmp_path / "train" / name, PNG)
    put(tmp_path / ".git" / "x.png", PNG)
    source = open_part("folder", tmp_path, "train")
    train = tmp_path / "train"
    assert [source.name(i) for i in range(len(source))] == [
        str(train / "a" / "0.jpeg"),
        str(train / "b" / "1.PNG"),
        str(train / "b" / "deep" / "er" / "2.JpG"),
    ]
    assert [source.load(i).target for i in range(3)] == [0, 1, 1]
    assert source.class_names == ("a", "b")
    assert source.classes == 2


@pytest.mark.parametrize("name", ["test", "val", "validation", "valid"])
def test_names_of_the_test_part(name, tmp_path):
    for file in ("train/a/0.png", "train/b/0.png", f"{name}/b/0.png"):
        put(tmp_path / file, PNG)
    source = open_part("folder", tmp_path, "test")
    assert len(source) == 1
    assert source.load(0).target == 1  # numbered as in the training part, though it has only this class
    assert source.classes == 2


def test_a_test_folder_without_classes_is_ignored(tmp_path):
    """As in ImageNet, whose test images have no labels."""
    for file in ("train/a/0.png", "train/b/0.png", "val/a/0.png", "test/0.png"):
        put(tmp_path / file, PNG)
    assert open_part("folder", tmp_path, "test").name(0) == str(tmp_path / "val" / "a" / "0.png")


def test_class_folders_alone_have_no_test_part(tmp_path):
    for file in ("a/0.png", "b/0.png", "b/1.png"):
        put(tmp_path / file, PNG)
    assert [open_part("folder", tmp_path, "train").load(i).target for i in range(3)] == [0, 1, 1]
    with pytest.raises(DataError, match=r"has no test part: it holds classes; expected train/CLASS/ and test/CLASS/"):
        open_part("folder", tmp_path, "test")


def test_a_training_part_alone_has_no_test_part(tmp_path):
    for file in ("train/a/0.png", "train/b/0.png"):
        put(tmp_path / file, PNG)
    with pytest.raises(DataError, match="has no test part; expected a folder test or val or validation or valid"):
        open_part("folder", tmp_path, "test")


def test_an_empty_class_folder_is_an_error(tmp_path):
    for file in ("train/a/0.png", "train/b/0.png"):
        put(tmp_path / file, PNG)
    (tmp_path / "train" / "c").mkdir()
    with pytest.raises(DataError, match=r"train/c holds no images; add some \(.jpg, .png"):
        open_part("folder", tmp_path, "train")
    for name in ("4.txt", "1.txt", "3.txt", "2.npy"):
        put(tmp_path / "train" / "c" / name, b"x")
    with pytest.raises(DataError, match=r"train/c holds no images, only 1.txt, 2.npy, 3.txt ...;"):
        open_part("folder", tmp_path, "train")


def test_a_class_that_is_only_in_the_test_part_is_an_error(tmp_path):
    for file in ("train/a/0.png", "train/b/0.png", "val/c/0.png"):
        put(tmp_path / file, PNG)
    with pytest.raises(DataError, match="val/c is a class without training images"):
        open_part("folder", tmp_path, "test")


def test_one_class_is_an_error(tmp_path):
    put(tmp_path / "train" / "a" / "0.png", PNG)
    with pytest.raises(DataError, match=r"holds the classes \['a'\]; expected at least two"):
        open_part("folder", tmp_path, "train")


def test_linked_class_folders_and_odd_names(tmp_path):
    put(tmp_path / "elsewhere" / "0.png", PNG)
    put(tmp_path / "data" / "train" / "été 1" / "ein Bild.png", PNG)
    (tmp_path / "data" / "train" / "linked").symlink_to(tmp_path / "elsewhere")
    source = open_part("folder", tmp_path / "data", "train")
    assert source.class_names == ("linked", "été 1")
    assert source.name(1).endswith("été 1/ein Bild.png")
    assert source.load(1).image.shape == (4, 5, 3)
    assert source.content_hash()


def test_images_keep_their_own_sizes(tmp_path):
    put(tmp_path / "train" / "a" / "0.png", encoded(picture(0, 0, (4, 5))))
    put(tmp_path / "train" / "b" / "0.png", encoded(picture(0, 0, (6, 3))))
    source = open_part("folder", tmp_path, "train")
    assert [source.load(i).image.shape for i in range(2)] == [(4, 5, 3), (6, 3, 3)]


def test_a_file_that_vanished_is_named(tmp_path):
    write("folder", tmp_path)
    source = open_part("folder", tmp_path, "train")
    (tmp_path / "train" / "ape" / "0000.png").unlink()
    with pytest.raises(DataError, match=r"train/ape/0000.png is missing"):
        source.load(0)


def test_imagenet_has_a_thousand_classes_even_where_folders_are_missing(tmp_path):
    write("imagenet", tmp_path, format="folder")
    assert open_part("imagenet", tmp_path, "test").classes == 1000
    (tmp_path / "train").rename(tmp_path / "gone")
    with pytest.raises(DataError, match="has no train part"):
        open_part("imagenet", tmp_path, "train")


# --- Tiny ImageNet


def tiny(tmp_path):
    write("tinyimagenet", tmp_path, format="folder")
    return tmp_path / "tiny-imagenet-200"


def test_gray_images_of_tiny_imagenet_get_three_channels(tmp_path):
    root = tiny(tmp_path)
    path = root / "val" / "images" / "val_0000.JPEG"
    Image.fromarray(np.full((64, 64), 77, np.uint8)).save(path)
    image = open_part("tinyimagenet", tmp_path, "test").load(0).image
    assert image.shape == (64, 64, 3)
    assert np.unique(image).tolist() == [77]


def test_classes_are_numbered_by_wordnet_id(tmp_path):
    """wnids.txt lists them in another order."""
    root = tiny(tmp_path)
    assert (root / "wnids.txt").read_text().split()[0] == "n01644900"
    source = open_part("tinyimagenet", tmp_path, "train")
    assert source.class_names == ("n01443537", "n01629819", "n01641577", "n01644900")
    assert "n01443537" in source.name(0)
    assert source.load(0).target == 0


def test_the_folder_itself_may_be_given(tmp_path):
    assert len(open_part("tinyimagenet", tiny(tmp_path), "train")) == 8


def test_val_sorted_into_classes(tmp_path):
    """As scripts do that prepare it for torchvision's ImageFolder."""
    root = tiny(tmp_path)
    for line in (root / "val" / "val_annotations.txt").read_text().splitlines():
        file, wnid = line.split("\t")[:2]
        put(root / "val" / wnid / file, (root / "val" / "images" / file).read_bytes())
        (root / "val" / "images" / file).unlink()
    (root / "val" / "images").rmdir()
    (root / "val" / "val_annotations.txt").unlink()
    source = open_part("tinyimagenet", tmp_path, "test")
    assert [source.load(i).target for i in range(8)] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_missing_files_of_tiny_imagenet_are_named(tmp_path):
    root = tiny(tmp_path)
    listing = root / "val" / "val_annotations.txt"
    text = listing.read_text()
    (root / "val" / "images" / "val_0003.JPEG").rename(root / "val" / "images" / "new.JPEG")
    with pytest.raises(DataError, match=r"val_0003.JPEG is missing: val_annotations.txt lists it"):
        open_part("tinyimagenet", tmp_path, "test")
    listing.write_text("\n".join(line for line in text.splitlines() if "val_0003" not in line))
    with pytest.raises(DataError, match=r"new.JPEG has no class"):
        open_part("tinyimagenet", tmp_path, "test")
    listing.write_text(text.replace("val_0001.JPEG\tn01629819", "val_0001.JPEG\tn99"))
    with pytest.raises(DataError, match=r"val_annotations.txt line 2: .* a class of wnids.txt"):
        open_part("tinyimagenet", tmp_path, "test")
    listing.unlink()
    with pytest.raises(DataError, match=r"val_annotations.txt is missing"):
        open_part("tinyimagenet", tmp_path, "test")
    (root / "train" / "n01641577").rename(root / "gone")
    with pytest.raises(DataError, match=r"train/n01641577 is missing: wnids.txt lists it"):
        open_part("tinyimagenet", tmp_path, "train")
