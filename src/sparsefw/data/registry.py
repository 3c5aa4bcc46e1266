"""The registry of data sets: their facts, their file formats, and how to obtain them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from sparsefw.data import camvid, cifar, cityscapes, digits, folders, idx, noise, tinyimagenet, webdataset
from sparsefw.data.data_folder import find_data_folder
from sparsefw.data.errors import DataError
from sparsefw.data.image_source import Format, Source
from sparsefw.data.parquet import parquet_format
from sparsefw.text import did_you_mean

Numbers = tuple[float, ...]


@dataclass(frozen=True)
class DatasetInfo:
    """A registered data set.

    name            how configurations call it
    task            one class per image, or one per pixel
    classes         number of classes; None where it depends on the files
    shape           channels, height and width of the network's input by default
    mean, std       of pixels divided by 255, per channel
    resident        small enough to be kept in memory, decoded
    files           the expected files, for messages
    obtain          how to get them, for messages
    description     for `sparsefw list datasets`
    formats         the file formats that are read; the first that is present is taken
    make            makes a part of a data set without files, which has no formats
    ignore_label    the label of pixels that do not count
    parts           "val" is among them only where the data set has such a part
    """

    name: str
    task: Literal["classification", "segmentation"]
    classes: int | None
    shape: tuple[int, int, int]
    mean: Numbers
    std: Numbers
    resident: bool
    files: str
    obtain: str
    description: str
    formats: tuple[Format, ...] = ()
    make: Callable[[str], Source] | None = None
    ignore_label: int | None = None
    parts: tuple[str, ...] = ("train", "test")

    def present(self, folder: Path) -> bool:
        """Return whether a folder holds this data set, in any of its formats."""
        return any(format.present(folder) for format in self.formats)

    def open(self, folder: Path, part: str, cache: Path | None = None) -> Source:
        """Open a part from the folder that holds the data set; `cache` is a folder for indexes that are slow to make."""
        if part not in self.parts:
            raise DataError(f"{self.name} has no part {part!r}; it has {', '.join(self.parts)}")
        if self.make is not None:
            return self.make(part)
        for format in self.formats:
            if format.present(folder):
                return format.open(folder, part, cache)
        raise DataError(f"{self.name}: nothing to read in {folder}; expected {self.files}. {self.obtain}")


_IMAGENET_MEAN = (0.485, 0.456, 0.406)
_IMAGENET_STD = (0.229, 0.224, 0.225)
_VALIDATION_NAMES = ("validation", "valid", "val")


def _open_user_folder(folder: Path, part: str, cache: Path | None) -> Source:
    return folders.open_user_folder(folder, part)


def _open_imagenet_folder(folder: Path, part: str, cache: Path | None) -> Source:
    return folders.open_image_folder(folder, part, classes=1000)


def _has_subfolders(folder: Path) -> bool:
    return bool(folders.subfolders(folder))


def noise_info(like: noise.Noise) -> DatasetInfo:
    """Return the record of the data set `noise` with such images."""
    return DatasetInfo(
        "noise",
        "classification",
        classes=like.classes,
        shape=like.shape,
        mean=(1 / 2,) * like.shape[0],
        std=(12**-0.5,) * like.shape[0],
        resident=True,
        files="none: it is made up in memory",
        obtain="Nothing to do.",
        description="for timing only: random pixels, of the shape, classes and number that data.noise says",
        make=partial(noise.open_noise, like),
        parts=noise.PARTS,
    )


_INFOS = (
    DatasetInfo(
        "digits",
        "classification",
        classes=10,
        shape=(1, 8, 8),
        mean=(digits.MEAN * digits.SCALE / 255,),
        std=(digits.STD * digits.SCALE / 255,),
        resident=True,
        files="none: it comes with the package",
        obtain="Nothing to do.",
        description="1,797 handwritten digits of 8 x 8 pixels",
        make=digits.open_digits,
    ),
    *(
        DatasetInfo(
            name,
            "classification",
            classes=10,
            shape=(1, 28, 28),
            mean=(mean,),
            std=(std,),
            resident=True,
            files="train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte (or .gz)",
            obtain=obtain,
            description=f"70,000 {what} of 28 x 28 gray pixels",
            formats=(Format("idx", idx.present, idx.open_files),),
        )
        for name, mean, std, what, obtain in (
            (
                "mnist",
                0.1307,
                0.3081,
                "handwritten digits",
                "Get the four .gz files from https://ossci-datasets.s3.amazonaws.com/mnist/.",
            ),
            (
                "fashion-mnist",
                0.2860,
                0.3530,
                "articles of clothing",
                "Install the Debian package dataset-fashion-mnist and give the folder it fills,"
                " or get the four .gz files from https://github.com/zalandoresearch/fashion-mnist.",
            ),
        )
    ),
    *(
        DatasetInfo(
            f"cifar{classes}",
            "classification",
            classes=classes,
            shape=(3, 32, 32),
            mean=mean,
            std=std,
            resident=True,
            files=f"cifar-{classes}-python.tar.gz or cifar-{classes}-binary.tar.gz, packed or extracted,"
            " or train-*.parquet and test-*.parquet",
            obtain=f"Get https://www.cs.toronto.edu/~kriz/cifar-{classes}-python.tar.gz,"
            f" or the Parquet files of uoft-cs/cifar{classes} on Hugging Face.",
            description=f"60,000 images of 32 x 32 pixels in {classes} classes",
            formats=formats,
        )
        for classes, mean, std, formats in (
            (10, (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010), cifar.CIFAR10),
            (100, (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761), cifar.CIFAR100),
        )
    ),
    DatasetInfo(
        "tinyimagenet",
        "classification",
        classes=tinyimagenet.CLASSES,
        shape=(3, 224, 224),
        mean=_IMAGENET_MEAN,
        std=_IMAGENET_STD,
        resident=True,
        files="tiny-imagenet-200/ with wnids.txt, train/ and val/, or train-*.parquet and valid-*.parquet",
        obtain="Get and extract http://cs231n.stanford.edu/tiny-imagenet-200.zip,"
        " or the Parquet files of zh-plus/tiny-imagenet on Hugging Face.",
        description="110,000 images of 64 x 64 pixels in 200 classes; its val part is the test part here",
        formats=(
            Format("folder", tinyimagenet.present, tinyimagenet.open_folder),
            parquet_format(tinyimagenet.CLASSES, {"train": ("train",), "test": (*_VALIDATION_NAMES, "test")}),
        ),
    ),
    DatasetInfo(
        "imagenet",
        "classification",
        classes=1000,
        shape=(3, 224, 224),
        mean=_IMAGENET_MEAN,
        std=_IMAGENET_STD,
        resident=False,
        files="train/CLASS/*.JPEG and val/CLASS/*.JPEG, or train-*.parquet and validation-*.parquet,"
        " or WebDataset tars *train*.tar and *val*.tar",
        obtain="Register at https://image-net.org and extract the ILSVRC 2012 archives into one folder per class,"
        " or get ILSVRC/imagenet-1k (Parquet) or timm/imagenet-1k-wds (tars) from Hugging Face.",
        description="1.3 million photographs in 1,000 classes; its validation part is the test part here",
        formats=(
            Format("folder", folders.image_folder_present, _open_imagenet_folder),
            parquet_format(1000, {"train": ("train",), "test": _VALIDATION_NAMES}),
            Format("webdataset", webdataset.present, partial(webdataset.open_tars, classes=1000)),
        ),
    ),
    DatasetInfo(
        "cityscapes",
        "segmentation",
        classes=len(cityscapes.CLASSES),
        shape=(3, 713, 713),
        mean=_IMAGENET_MEAN,
        std=_IMAGENET_STD,
        resident=False,
        files="leftImg8bit/{train,val}/CITY/*_leftImg8bit.png and gtFine/{train,val}/CITY/*_gtFine_labelIds.png",
        obtain="Register at https://www.cityscapes-dataset.com and extract leftImg8bit_trainvaltest.zip and"
        " gtFine_trainvaltest.zip.",
        description="3,475 street scenes of 2048 x 1024 pixels in 19 classes; its val part is the test part here",
        formats=(Format("folder", cityscapes.present, cityscapes.open_folder),),
        ignore_label=cityscapes.IGNORE,
    ),
    DatasetInfo(
        "camvid",
        "segmentation",
        classes=len(camvid.CLASSES),
        shape=(3, 360, 480),
        mean=_IMAGENET_MEAN,
        std=_IMAGENET_STD,
        resident=True,
        files="train-*.parquet, val-*.parquet and test-*.parquet with the columns image and annotation",
        obtain="Get the Parquet files of a copy on Hugging Face.",
        description="701 street scenes of 360 x 480 pixels in 11 classes",
        formats=(camvid.FORMAT,),
        ignore_label=camvid.IGNORE,
        parts=("train", "val", "test"),
    ),
    DatasetInfo(
        "folder",
        "classification",
        classes=None,
        shape=(3, 224, 224),
        mean=_IMAGENET_MEAN,
        std=_IMAGENET_STD,
        resident=False,
        files="train/CLASS/* and test/CLASS/* (or val, validation, valid), or CLASS/* alone, without a test part",
        obtain="Put your images into one folder per class.",
        description="images of your own, one folder per class",
        formats=(Format("folder", _has_subfolders, _open_user_folder),),
    ),
    noise_info(noise.Noise()),
)

DATASETS: dict[str, DatasetInfo] = {info.name: info for info in _INFOS}


def dataset(name: str) -> DatasetInfo:
    """Return the record of a data set; raise DataError where there is none of this name.

    >>> dataset("cifar10").shape
    (3, 32, 32)
    """
    if name in DATASETS:
        return DATASETS[name]
    known = ", ".join(DATASETS)
    raise DataError(f"there is no data set {name!r}{did_you_mean(name, DATASETS) or f'; known are {known}'}")


def open_part(name: str, folder: Path | None, part: str, cache: Path | None = None) -> Source:
    """Open a part of a data set.

    Args:
        name: a key of DATASETS.
        folder: the folder with its files; None: the environment variable SPARSEFW_DATA.
        part: "train", "test", and for some data sets "val".
        cache: a folder for indexes that are slow to make.

    >>> len(open_part("digits", None, "test"))
    397
    """
    info = dataset(name)
    return info.open(find_data_folder(info, folder), part, cache)
