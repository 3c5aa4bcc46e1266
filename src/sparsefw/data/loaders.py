"""Open a data set by name: parts to train, validate and test on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import numpy as np
import torch
from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from sparsefw.config_base import Section
from sparsefw.data.augment import Augment
from sparsefw.data.batches import BatchSettings, DataPart, Normaliser, Share, split_indices
from sparsefw.data.data_folder import find_data_folder
from sparsefw.data.decoding import decode_images
from sparsefw.data.errors import DataError
from sparsefw.data.fingerprint import Fingerprint
from sparsefw.data.folders import TEST_FOLDERS, subfolders
from sparsefw.data.image_source import Source
from sparsefw.data.noise import Noise
from sparsefw.data.registry import DatasetInfo, dataset, noise_info
from sparsefw.data.resident_part import DeviceImages, ResidentPart
from sparsefw.data.streaming_part import StreamingPart
from sparsefw.user_cache import cache_folder

_DECODING_WORKERS = 2  # where the engine has no workers


class DataConfig(Section):
    """Which images, and how they become batches.

    name          a data set of `sparsefw list datasets`
    batch_size    images per step, in all processes together
    validation    fraction of the training images that is held out for choices; 0: none. Data sets with their own validation
                  part use that instead
    split_seed    decides which images are held out; runs that are compared must have the same
    size          height and width of the network's input; None: those of the data set
    mean, std     of pixels divided by 255, per channel; None: those of the data set
    augment       random changes of training images
    resident      keep decoded images in the memory of the device instead of streaming them from disk; None: as the size of the
                  data set suggests
    on_corrupt    for an image that cannot be read: "error" stops, "skip" leaves it out and counts it
    noise         the images of the data set "noise"; None for all others
    """

    name: str
    batch_size: int = Field(default=128, ge=1)
    validation: float = Field(default=0.1, ge=0, lt=1)
    split_seed: int = Field(default=0, ge=0)
    size: tuple[PositiveInt, PositiveInt] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[PositiveFloat, ...] | None = None
    augment: Augment = Augment()
    resident: bool | None = None
    on_corrupt: Literal["error", "skip"] = "error"
    noise: Noise | None = None

    @model_validator(mode="after")
    def _check_noise(self) -> Self:
        if self.noise is not None and self.name != "noise":
            raise ValueError(
                f"noise: describes made-up images, but name={self.name!r}; set name to noise, or leave it out"
            )
        return self

    def info(self) -> DatasetInfo:
        """Return the record of the data set."""
        return dataset(self.name) if self.noise is None else noise_info(self.noise)


@dataclass(frozen=True)
class Data:
    """An opened data set. `validation` and `test` are None where there are no such images.

    fingerprint    of every part of the files
    """

    train: DataPart
    validation: DataPart | None
    test: DataPart | None
    task: str
    classes: int
    shape: tuple[int, int, int]
    ignore_label: int | None
    fingerprint: Fingerprint

    @property
    def skipped(self) -> int:
        """The number of corrupt images that were left out so far; parts of the same files count them once."""
        readers = {part.reader for part in (self.train, self.validation, self.test) if part is not None}
        return sum(reader.skipped for reader in readers)


def open_data(
    config: DataConfig,
    given: Path | None,
    *,
    device: torch.device,
    seed: int,
    share: Share = Share(),
    channels_last: bool = False,
    workers: int = 0,
) -> Data:
    """Open the parts of a data set.

    Args:
        config: which data set, and how its images become batches.
        given: the folder with its files; None: the environment variable SPARSEFW_DATA.
        device: where batches are.
        seed: of the order of epochs and of the augmentation.
        share: of this process in every batch.
        channels_last: the memory format of batches.
        workers: processes that decode images.

    >>> data = open_data(DataConfig(name="digits"), None, device=torch.device("cpu"), seed=0)
    >>> len(data.train), len(data.validation), len(data.test)
    (1260, 140, 397)
    """
    info = config.info()
    resident = info.resident if config.resident is None else config.resident
    _check_augmentation(config, info, resident)
    folder = find_data_folder(info, given)
    cache = cache_folder() / "decoded"
    shape = info.shape if config.size is None else (info.shape[0], *config.size)
    mean = info.mean if config.mean is None else config.mean
    std = info.std if config.std is None else config.std
    if len(mean) != shape[0] or len(std) != shape[0]:
        raise DataError(f"data.mean, data.std: {info.name} has {shape[0]} channels; give one number for each")
    normaliser = Normaliser(mean, std, device, channels_last)
    settings = BatchSettings((shape[1], shape[2]), config.augment, seed, share, normaliser)

    def load(source: Source) -> DeviceImages | None:
        if not resident:
            return None
        return DeviceImages(decode_images(source, cache, workers or _DECODING_WORKERS, config.on_corrupt), device)

    def part_of(source: Source, images: DeviceImages | None, indices: np.ndarray) -> DataPart:
        if images is not None:
            return ResidentPart(images, indices, settings)
        return StreamingPart(source, indices, settings, workers, config.on_corrupt == "skip")

    def whole(source: Source) -> DataPart:
        images = load(source)
        return part_of(source, images, np.arange(_count(source, images)))

    train_source = info.open(folder, "train", cache)
    train_images = load(train_source)
    has_validation = "val" in info.parts
    fraction = 0.0 if has_validation else config.validation
    kept, held_out = split_indices(_count(train_source, train_images), fraction, config.split_seed)
    if len(kept) < config.batch_size:
        raise DataError(
            f"data.batch_size={config.batch_size}: {info.name} has {len(kept)} images to train on; take at most that"
        )
    validation = part_of(train_source, train_images, held_out) if len(held_out) else None
    sources = {"train": train_source}
    if has_validation and config.validation:
        sources["validation"] = info.open(folder, "val", cache)
        validation = whole(sources["validation"])
    test_source = _open_test_part(info, folder, cache)
    if test_source is not None:
        sources["test"] = test_source
    return Data(
        train=part_of(train_source, train_images, kept),
        validation=validation,
        test=None if test_source is None else whole(test_source),
        task=info.task,
        classes=train_source.classes,
        shape=shape,
        ignore_label=info.ignore_label,
        fingerprint={part: source.fingerprint() for part, source in sources.items()},
    )


def _check_augmentation(config: DataConfig, info: DatasetInfo, resident: bool) -> None:
    if not resident and (config.augment.crop or config.augment.rotation):
        raise DataError(
            f"data.augment: crop and rotation need images in memory, but {info.name} is streamed; "
            "set data.resident=true, or use resized_crop"
        )
    if config.augment.zoom is not None and info.task == "classification":
        raise DataError(f"data.augment: zoom is for label maps, but {info.name} has classes; use resized_crop")


def _count(source: Source, images: DeviceImages | None) -> int:
    """Return the number of images: in memory there may be fewer than in the source, because corrupt ones were skipped."""
    return len(source) if images is None else len(images.images)


def _open_test_part(info: DatasetInfo, folder: Path, cache: Path) -> Source | None:
    if info.classes is None and not any(subfolders(folder / name) for name in TEST_FOLDERS):
        return None  # a user's own folder may have no test part
    return info.open(folder, "test", cache)
