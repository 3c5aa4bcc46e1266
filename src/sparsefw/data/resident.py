"""Small sets: decoded once, kept on the device as bytes, augmented there many batches at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from sparsefw.data.augment import CENTRE, Augment, augmented, centred
from sparsefw.data.batches import (
    Batch,
    Normal,
    Part,
    Share,
    epoch_numbers,
    epoch_order,
    evaluation_batch,
    sample_numbers,
    sampled,
)
from sparsefw.data.decoded import Decoded


class Resident(Part):
    """Images (n, c, h, w) and targets on the device, of which `indices` belong to this part."""

    def __init__(
        self,
        data: Stored,
        indices: np.ndarray,
        size: tuple[int, int],
        augment: Augment,
        seed: int,
        share: Share,
        normal: Normal,
    ) -> None:
        self._data, self._indices, self._size, self._augment = data, indices, size, augment
        self._seed, self._share, self._normal = seed, share, normal

    def __len__(self) -> int:
        return len(self._indices)

    @property
    def skipped(self) -> int:
        return self._data.skipped

    @property
    def largest_class(self) -> float | None:
        if self._data.targets.ndim > 1:  # label maps
            return None
        targets = self._data.targets[torch.from_numpy(self._indices).to(self.device)]
        return float(torch.bincount(targets.long()).max()) / len(targets)

    @property
    def reader(self) -> Stored:
        return self._data

    def training(self, epoch: int, start: int, batch: int) -> Iterator[Batch]:
        steps, own = len(self) // batch, batch // self._share.world
        order = epoch_order(self._indices, self._seed, epoch)[: steps * batch]
        # Of every batch, process r has the positions r, r + world, ...: the same images together, however many processes.
        positions = torch.arange(steps * batch).view(steps, batch)[:, self._share.rank :: self._share.world].reshape(-1)
        images = torch.from_numpy(order)[positions]
        numbers = epoch_numbers(steps * batch, self._seed, epoch)[positions]
        together = own * max(1, evaluation_batch((self._data.images.shape[1], *self._size), most=8192) // own)
        for first in range(start * own, len(images), together):
            chunk = slice(first, first + together)
            whole = self._augmented(_moved(images[chunk], self.device), _moved(numbers[chunk], self.device))
            for inputs, targets in zip(whole.inputs.split(own), whole.targets.split(own), strict=True):
                yield Batch(inputs, targets)

    @property
    def device(self) -> torch.device:
        return self._data.images.device

    def _augmented(self, indices: Tensor, numbers: Tensor) -> Batch:
        images, targets = self._data.images[indices], self._data.targets[indices]
        if targets.ndim > 1:
            targets = augmented(self._augment, targets, numbers, self._size)
        elif images.shape[-2:] != self._size and not self._augment.resizes:
            images = centred(images, self._size, 1.0)  # as in evaluation; only label maps are cut to size at random
        return Batch(self._normal(augmented(self._augment, images, numbers, self._size)), targets.long())

    def evaluation(self) -> Iterator[Batch]:
        for inputs, indices in self.plain(self._indices):
            yield Batch(inputs, self._data.targets[indices].long())

    def sample(self, images: int) -> Iterable[Tensor]:
        return _Sample(self, sampled(self._indices, images))

    def calibrating(self, indices: np.ndarray) -> Iterator[Tensor]:
        """This process's share of some images, augmented, the same way every time."""
        own = slice(self._share.rank, None, self._share.world)
        some, numbers = torch.from_numpy(indices[own]), sample_numbers(len(indices))[own]
        together = evaluation_batch((self._data.images.shape[1], *self._size), most=256)
        for part, u in zip(some.split(together), numbers.split(together), strict=True):
            if len(part):
                yield self._augmented(part.to(self.device), u.to(self.device)).inputs

    def plain(self, indices: np.ndarray, most: int = 1000) -> Iterator[tuple[Tensor, Tensor]]:
        """This process's share of some images as they are, and their indices."""
        own = torch.from_numpy(indices[self._share.rank :: self._share.world]).to(self.device)
        channels, *full = self._data.images.shape[1:]
        shape = self._size if self._is_resized() else full
        for some in own.split(evaluation_batch((channels, *shape), most)) if len(own) else ():
            yield self._plain(some), some

    def _plain(self, indices: Tensor) -> Tensor:
        """As they are; of images that were trained on resized crops, their middle."""
        images = self._data.images[indices]
        if self._is_resized():
            images = centred(images, self._size, CENTRE if self._augment.resized_crop else 1.0)
        return self._normal(images)

    def _is_resized(self) -> bool:
        """Whether evaluation resizes images. Whole label maps need whole images."""
        other = self._augment.resized_crop or self._data.images.shape[-2:] != self._size
        return other and self._data.targets.ndim == 1


class _Sample:
    """Batches that are made whenever they are asked for: thousands of floating-point images may be more than fits."""

    def __init__(self, part: Resident, indices: np.ndarray) -> None:
        self._part, self._indices = part, indices

    def __iter__(self) -> Iterator[Tensor]:
        yield from self._part.calibrating(self._indices)


class Stored:
    """The decoded images of one file set on the device, shared by the parts that are cut from it."""

    def __init__(self, found: Decoded, device: torch.device) -> None:
        self.images = torch.from_numpy(found.images).to(device)
        self.targets = torch.from_numpy(found.targets).to(device)
        self.skipped = len(found.skipped)


def _moved(values: Tensor, device: torch.device) -> Tensor:
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values
