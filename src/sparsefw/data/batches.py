"""Batches, and the interface by which the training loop gets them.

Nothing here has a state. The order of an epoch, the share of a process and the random numbers of every image are functions
of (seed, epoch, position): a training that is resumed, even with another number of processes, sees the same batches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sparsefw.data.augment import CENTRE, Augment
from sparsefw.randomness import generator

NUMBERS_PER_IMAGE = 6  # random numbers in [0, 1) per image and epoch; their use is in augment.py

BLOCKS_PER_WINDOW = 4  # blocks whose images are shuffled together


class Batch(NamedTuple):
    """Inputs and targets on the device: classes (n,), their probabilities (n, classes), or label maps (n, h, w)."""

    inputs: Tensor
    targets: Tensor


@dataclass(frozen=True)
class Share:
    """The share of this process in all work: number `rank` of `world`."""

    rank: int = 0
    world: int = 1


class Normaliser:
    """Computes (x / 255 - mean) / std of bytes, in one operation.

    Args:
        mean, std: per channel.
        device: where the result is.
        channels_last: its memory format.
    """

    def __init__(
        self, mean: Sequence[float], std: Sequence[float], device: torch.device, channels_last: bool = False
    ) -> None:
        centre, spread = (torch.tensor(v, dtype=torch.float32, device=device).view(1, -1, 1, 1) for v in (mean, std))
        self._scale = 1 / (255 * spread)
        self._offset = -centre / spread
        self._format = torch.channels_last if channels_last else torch.contiguous_format
        self.device = device

    def __call__(self, images: Tensor) -> Tensor:
        pixels = images.to(self.device, non_blocking=True).float()
        return torch.addcmul(self._offset, pixels, self._scale).contiguous(memory_format=self._format)


@dataclass(frozen=True)
class BatchSettings:
    """How images become batches.

    size          height and width of the network's input
    augment       random changes of training images
    seed          of the order of epochs and of these changes
    share         of this process
    normaliser    makes floating-point images of bytes
    crop          the part of the shorter side that evaluation looks at; None: as training on these augmentations has it
    """

    size: tuple[int, int]
    augment: Augment
    seed: int
    share: Share
    normaliser: Normaliser
    crop: float | None = None

    @property
    def centre(self) -> float:
        """The part of the shorter side that evaluation looks at."""
        if self.crop is not None:
            return self.crop
        return CENTRE if self.augment.resized_crop else 1.0


class DataPart(ABC):
    """The training, validation or test images of a data set."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of images, in all processes together."""

    @abstractmethod
    def training(self, epoch: int, start: int, batch: int) -> Iterator[Batch]:
        """Yield this process's share of every batch of `batch` images, shuffled and augmented, from step `start` on.

        Images that do not fill a batch are left out, other ones in every epoch.
        """

    @abstractmethod
    def evaluation(self) -> Iterator[Batch]:
        """Yield this process's share of all images, each once, without augmentation."""

    @abstractmethod
    def sample(self, images: int) -> Iterable[Tensor]:
        """Return this process's share of a fixed random choice of images, without labels, for calibration.

        The result can be iterated over many times and yields batches. Images are augmented, because BatchNorm statistics and
        fitted weights belong to the images that the network was trained on: for a ResNet-18 on CIFAR-10, whose crops have
        black borders, statistics of images without borders cost 1.5 points.
        """

    @property
    @abstractmethod
    def skipped(self) -> int:
        """The number of corrupt images that were left out so far, where the configuration allows that."""

    @property
    def largest_class(self) -> float | None:
        """The fraction of images in the most frequent class; None where that is unknown without reading all images."""
        return None

    @property
    def reader(self) -> Any:
        """The object that reads the files and counts `skipped`; parts that are split from the same files may share it."""
        return self


def sample_indices(indices: np.ndarray, images: int) -> np.ndarray:
    """Return a fixed random choice of `images` indices, or all indices where there are fewer."""
    return generator("sample").permutation(indices)[:images]


def sample_numbers(count: int) -> Tensor:
    """Return the fixed random numbers of the images of a sample."""
    return torch.from_numpy(generator("sample numbers").random((count, NUMBERS_PER_IMAGE), dtype=np.float32))


def evaluation_batch(shape: Sequence[int], most: int = 1000, floats: int = 1 << 24) -> int:
    """Return the number of images of this shape to evaluate at a time: about 64 MiB of them, at least one.

    >>> evaluation_batch((3, 32, 32)), evaluation_batch((3, 1024, 2048))
    (1000, 2)
    """
    return max(1, min(most, floats // max(1, int(np.prod(shape)))))


def epoch_order(indices: np.ndarray, seed: int, epoch: int, blocks: Sequence[range] | None = None) -> np.ndarray:
    """Return the images of an epoch in the order in which it visits them.

    With `blocks`, ranges of images that are cheap to read together, first the blocks are shuffled, then the images within
    every BLOCKS_PER_WINDOW blocks: readers hold few blocks at a time.
    """
    draw = generator("order", seed, epoch)
    if blocks is None:
        return draw.permutation(indices)
    ends = np.array([block.stop for block in blocks])
    members = np.split(indices, np.searchsorted(indices, ends)[:-1])
    order = draw.permutation(len(blocks))
    shuffled = []
    for start in range(0, len(order), BLOCKS_PER_WINDOW):
        window = [members[block] for block in order[start : start + BLOCKS_PER_WINDOW]]
        shuffled.append(draw.permutation(np.concatenate(window)))
    return np.concatenate(shuffled)


def epoch_numbers(count: int, seed: int, epoch: int) -> Tensor:
    """Return random numbers in [0, 1), (count, NUMBERS_PER_IMAGE): row i belongs to the i-th image that the epoch visits."""
    return torch.from_numpy(generator("augment", seed, epoch).random((count, NUMBERS_PER_IMAGE), dtype=np.float32))


def split_indices(count: int, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return disjoint sorted indices: those to train on, and a random `fraction` to validate on.

    >>> train, validation = split_indices(10, 0.2, seed=0)
    >>> len(train), len(validation)
    (8, 2)
    """
    order = generator("split", seed).permutation(count)
    held_out = round(fraction * count)
    return np.sort(order[held_out:]), np.sort(order[:held_out])
