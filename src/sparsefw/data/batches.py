"""Batches: what the training loop sees of a data set.

Nothing here has a state. The order of an epoch, the share of a process and the random numbers of every image are functions
of (seed, epoch, position), so that training goes on after a kill, or on another number of processes, with the same batches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

NUMBERS = 6  # random numbers in [0, 1) per image and epoch; augment.py says what each decides

WINDOW = 4  # blocks


class Batch(NamedTuple):
    """Inputs and targets on the device: classes (n,), their probabilities (n, classes), or label maps (n, h, w)."""

    inputs: Tensor
    targets: Tensor


@dataclass(frozen=True)
class Share:
    """Which part of the work is this process's: `rank` of `world`."""

    rank: int = 0
    world: int = 1


class Normal:
    """(x / 255 - mean) / std of bytes, in one operation, on the device and in the memory format that training uses."""

    def __init__(
        self, mean: Sequence[float], std: Sequence[float], device: torch.device, channels_last: bool = False
    ) -> None:
        centre, spread = (torch.tensor(v, dtype=torch.float32, device=device).view(1, -1, 1, 1) for v in (mean, std))
        self._scale, self._offset = 1 / (255 * spread), -centre / spread
        self._format = torch.channels_last if channels_last else torch.contiguous_format
        self.device = device

    def __call__(self, images: Tensor) -> Tensor:
        pixels = images.to(self.device, non_blocking=True).float()
        return torch.addcmul(self._offset, pixels, self._scale).contiguous(memory_format=self._format)


class Part(ABC):
    """The training, validation or test images of a data set."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of images, in all processes together."""

    @abstractmethod
    def training(self, epoch: int, start: int, batch: int) -> Iterator[Batch]:
        """Shuffled and augmented, from step `start` of the epoch on: this process's share of every batch of `batch` images.

        What does not fill a batch is left out; it is another remainder in every epoch.
        """

    @abstractmethod
    def evaluation(self) -> Iterator[Batch]:
        """This process's share of all images, each once, as they are."""

    @abstractmethod
    def sample(self, images: int) -> Iterable[Tensor]:
        """This process's share of that many images, chosen and augmented at random once and for all, without labels.

        For calibration: can be read again and again, in batches. Augmented, since BatchNorm statistics and fitted weights
        belong to the images that the network was trained on: of a ResNet-18 on CIFAR-10, whose crops have black borders,
        statistics of images without borders cost 1.5 points.
        """

    @property
    @abstractmethod
    def skipped(self) -> int:
        """Corrupt images that were left out so far, where that was asked for."""

    @property
    def largest_class(self) -> float | None:
        """The share of the images that are of the most frequent class; None where that is not known without reading them."""
        return None

    @property
    def reader(self) -> Any:
        """What has read the files and counted `skipped`; parts that are cut from the same files may share it."""
        return self


def sampled(indices: np.ndarray, images: int) -> np.ndarray:
    """That many of the indices, the same ones every time; all where there are no more."""
    return generator("sample").permutation(indices)[:images]


def sample_numbers(count: int) -> Tensor:
    """The random numbers of the images of a sample, the same ones every time."""
    return torch.from_numpy(generator("sample numbers").random((count, NUMBERS), dtype=np.float32))


def evaluation_batch(shape: Sequence[int], most: int = 1000, floats: int = 1 << 24) -> int:
    """How many images of `shape` are evaluated at a time: about 64 MiB of them, at least one."""
    return max(1, min(most, floats // max(1, int(np.prod(shape)))))


def generator(purpose: str, *key: int) -> np.random.Generator:
    """Random numbers that belong to this purpose and these integers and to nothing else."""
    # With its length: SeedSequence fills up with zeros, so that (5, 2) would be (5, 2, 0).
    return np.random.Generator(np.random.Philox(np.random.SeedSequence((len(key), *key, *purpose.encode()))))


def epoch_order(indices: np.ndarray, seed: int, epoch: int, blocks: Sequence[range] | None = None) -> np.ndarray:
    """The images of an epoch in the order in which it visits them.

    With `blocks`, ranges of images that are cheap to read together, the blocks are shuffled, and then the images within
    every WINDOW blocks: readers hold few blocks at a time.
    """
    draw = generator("order", seed, epoch)
    if blocks is None:
        return draw.permutation(indices)
    ends = np.array([block.stop for block in blocks])
    members = np.split(indices, np.searchsorted(indices, ends)[:-1])
    order = draw.permutation(len(blocks))
    windows = [order[i : i + WINDOW] for i in range(0, len(order), WINDOW)]
    return np.concatenate([draw.permutation(np.concatenate([members[b] for b in window])) for window in windows])


def epoch_numbers(count: int, seed: int, epoch: int) -> Tensor:
    """(count, NUMBERS) random numbers in [0, 1): row i belongs to the i-th image that the epoch visits."""
    return torch.from_numpy(generator("augment", seed, epoch).random((count, NUMBERS), dtype=np.float32))


def split(count: int, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices to train on and a random `fraction` to validate on, each in their original order; no index is in both."""
    order = generator("split", seed).permutation(count)
    held_out = round(fraction * count)
    return np.sort(order[held_out:]), np.sort(order[:held_out])
