"""A data set by name, opened: parts to train, validate and test on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import numpy as np
import torch
from pydantic import Field, PositiveInt, model_validator

from sparsefw.atomic_io import cache_folder
from sparsefw.config_base import Section
from sparsefw.data.augment import Augment
from sparsefw.data.batches import Normal, Part, Share, split
from sparsefw.data.decoded import decoded
from sparsefw.data.errors import DataError
from sparsefw.data.folders import TEST_FOLDERS, subfolders
from sparsefw.data.locate import folder_of
from sparsefw.data.noise import Noise
from sparsefw.data.registry import DatasetInfo, dataset, noise_info
from sparsefw.data.resident import Resident, Stored
from sparsefw.data.source import Source
from sparsefw.data.streaming import Streaming


class DataConfig(Section):
    """Which images, and how they become batches.

    name          a data set of `sparsefw list datasets`
    batch_size    images per step, in all processes together
    validation    fraction of the training images that is held out to choose by; 0: none. Sets with a validation part of their
                  own use that instead
    split_seed    which ones: the same for all runs that are to be compared
    size          height and width of the network's input, where it is not the data set's own
    resident      decoded in the device's memory, or streamed from disk; None: as the set's size suggests
    on_corrupt    what an image that cannot be read does: "error", or "skip", which counts them
    noise         what the made-up images of the set "noise" are like; None for all other sets
    """

    name: str
    batch_size: int = Field(default=128, ge=1)
    validation: float = Field(default=0.1, ge=0, lt=1)
    split_seed: int = Field(default=0, ge=0)
    size: tuple[PositiveInt, PositiveInt] | None = None
    augment: Augment = Augment()
    resident: bool | None = None
    on_corrupt: Literal["error", "skip"] = "error"
    noise: Noise | None = None

    @model_validator(mode="after")
    def _noise_is_made_up(self) -> Self:
        if self.noise is not None and self.name != "noise":
            raise ValueError(
                f"noise: describes made-up images, but name={self.name!r}; set name to noise, or leave it out"
            )
        return self

    def info(self) -> DatasetInfo:
        return dataset(self.name) if self.noise is None else noise_info(self.noise)


@dataclass(frozen=True)
class Data:
    """What is trained on. `validation` and `test` are None where there are no such images."""

    train: Part
    validation: Part | None
    test: Part | None
    task: str
    classes: int
    shape: tuple[int, int, int]
    ignore_label: int | None

    @property
    def skipped(self) -> int:
        """Corrupt images that were left out so far. Parts in memory may be cut from the same files: these count once."""
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
    """The parts of a data set, from the folder `given` or the environment variable SPARSEFW_DATA."""
    info = config.info()
    resident = info.resident if config.resident is None else config.resident
    if not resident and (config.augment.crop or config.augment.rotation):
        raise DataError(
            f"data.augment: crop and rotation need images in memory, but {info.name} is streamed; "
            "set data.resident=true, or use resized_crop"
        )
    if config.augment.zoom is not None and info.task == "classification":
        raise DataError(f"data.augment: zoom is for label maps, but {info.name} has classes; use resized_crop")
    folder, cache = folder_of(info, given), cache_folder() / "decoded"
    train = info.open(folder, "train", cache)
    shape = info.shape if config.size is None else (info.shape[0], *config.size)
    size = (shape[1], shape[2])

    normal = Normal(info.mean, info.std, device, channels_last)

    def part(source: Source, stored: Stored | None, indices: np.ndarray | None = None) -> Part:
        # In memory there may be fewer than in the source: corrupt ones were left out.
        every = len(source) if stored is None else len(stored.images)
        chosen = np.arange(every) if indices is None else indices
        if stored is not None:
            return Resident(stored, chosen, size, config.augment, seed, share, normal)
        skip = config.on_corrupt == "skip"
        return Streaming(source, chosen, size, config.augment, seed, share, normal, workers, skip)

    def store(source: Source) -> Stored | None:
        if not resident:
            return None
        found = decoded(source, cache, max(1, workers or 2), config.on_corrupt)
        return Stored(found, device)

    stored = store(train)
    count = len(train) if stored is None else len(stored.images)
    own_validation = "val" in info.parts
    fraction = 0.0 if own_validation else config.validation
    kept, held_out = split(count, fraction, config.split_seed)
    if len(kept) < config.batch_size:
        raise DataError(
            f"data.batch_size={config.batch_size}: {info.name} has {len(kept)} images to train on; take at most that"
        )
    validation = part(train, stored, held_out) if len(held_out) else None
    if own_validation and config.validation:
        source = info.open(folder, "val", cache)
        validation = part(source, store(source))
    tested = _test(info, folder, cache)
    test = None if tested is None else part(tested, store(tested))
    return Data(part(train, stored, kept), validation, test, info.task, train.classes, shape, info.ignore_label)


def _test(info: DatasetInfo, folder: Path, cache: Path) -> Source | None:
    if info.classes is None and not any(subfolders(folder / name) for name in TEST_FOLDERS):
        return None  # the user's own folder may have none
    return info.open(folder, "test", cache)
