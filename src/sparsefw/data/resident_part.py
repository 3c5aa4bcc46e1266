"""Small data sets: decoded once, kept as bytes in the memory of the device, and augmented there many batches at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from sparsefw.data.augment import augment_images, centre_crop
from sparsefw.data.batches import (
    Batch,
    BatchSettings,
    DataPart,
    epoch_numbers,
    epoch_order,
    evaluation_batch,
    sample_indices,
    sample_numbers,
)
from sparsefw.data.decoding import DecodedImages


class DeviceImages:
    """The decoded images of some files on the device, shared by the parts that are split from them."""

    def __init__(self, decoded: DecodedImages, device: torch.device) -> None:
        self.images = torch.from_numpy(decoded.images).to(device)
        self.targets = torch.from_numpy(decoded.targets).to(device)
        self.skipped = len(decoded.skipped)

    @property
    def has_label_maps(self) -> bool:
        return self.targets.ndim > 1


class ResidentPart(DataPart):
    """The images `indices` of those on the device."""

    def __init__(self, data: DeviceImages, indices: np.ndarray, settings: BatchSettings) -> None:
        self._data = data
        self._indices = indices
        self._settings = settings

    def __len__(self) -> int:
        return len(self._indices)

    @property
    def device(self) -> torch.device:
        return self._data.images.device

    @property
    def skipped(self) -> int:
        return self._data.skipped

    @property
    def reader(self) -> DeviceImages:
        return self._data

    @property
    def largest_class(self) -> float | None:
        if self._data.has_label_maps:
            return None
        targets = self._data.targets[torch.from_numpy(self._indices).to(self.device)]
        return float(torch.bincount(targets.long()).max()) / len(targets)

    def training(self, epoch: int, start: int, batch: int) -> Iterator[Batch]:
        share = self._settings.share
        steps = len(self) // batch
        local_batch = batch // share.world
        order = epoch_order(self._indices, self._settings.seed, epoch)[: steps * batch]
        # Of every batch, process r gets positions r, r + world, ...: together the same images, for any number of processes.
        positions = torch.arange(steps * batch).view(steps, batch)[:, share.rank :: share.world].reshape(-1)
        images = torch.from_numpy(order)[positions]
        numbers = epoch_numbers(steps * batch, self._settings.seed, epoch)[positions]
        at_once = local_batch * max(1, evaluation_batch(self._input_shape, most=8192) // local_batch)
        for first in range(start * local_batch, len(images), at_once):
            chunk = slice(first, first + at_once)
            whole = self._augmented(_to_device(images[chunk], self.device), _to_device(numbers[chunk], self.device))
            for inputs, targets in zip(whole.inputs.split(local_batch), whole.targets.split(local_batch), strict=True):
                yield Batch(inputs, targets)

    def evaluation(self) -> Iterator[Batch]:
        share = self._settings.share
        indices = torch.from_numpy(self._indices[share.rank :: share.world]).to(self.device)
        channels, *full_size = self._data.images.shape[1:]
        size = self._settings.size if self._evaluation_resizes else full_size
        for some in indices.split(evaluation_batch((channels, *size))) if len(indices) else ():
            yield Batch(self._evaluation_inputs(some), self._data.targets[some].long())

    def sample(self, images: int) -> Iterable[Tensor]:
        return _Sample(self, sample_indices(self._indices, images))

    def sample_batches(self, indices: np.ndarray) -> Iterator[Tensor]:
        """Yield this process's share of these images, augmented in the same way every time."""
        local = slice(self._settings.share.rank, None, self._settings.share.world)
        images = torch.from_numpy(indices[local])
        numbers = sample_numbers(len(indices))[local]
        at_once = evaluation_batch(self._input_shape, most=256)
        for some, u in zip(images.split(at_once), numbers.split(at_once), strict=True):
            if len(some):
                yield self._augmented(some.to(self.device), u.to(self.device)).inputs

    @property
    def _input_shape(self) -> tuple[int, ...]:
        return (self._data.images.shape[1], *self._settings.size)

    @property
    def _evaluation_resizes(self) -> bool:
        """Whether evaluation resizes images, which whole label maps do not allow."""
        differs = self._settings.augment.resized_crop or self._data.images.shape[-2:] != self._settings.size
        return differs and not self._data.has_label_maps

    def _augmented(self, indices: Tensor, numbers: Tensor) -> Batch:
        augment = self._settings.augment
        size = self._settings.size
        images = self._data.images[indices]
        targets = self._data.targets[indices]
        if self._data.has_label_maps:
            targets = augment_images(augment, targets, numbers, size)
        elif images.shape[-2:] != size and not augment.resizes:
            images = centre_crop(images, size, 1.0)  # as in evaluation; only label maps are cropped at random
        return Batch(self._settings.normaliser(augment_images(augment, images, numbers, size)), targets.long())

    def _evaluation_inputs(self, indices: Tensor) -> Tensor:
        """Return whole images, or where evaluation resizes them their central crops."""
        images = self._data.images[indices]
        if self._evaluation_resizes:
            images = centre_crop(images, self._settings.size, self._settings.centre)
        return self._settings.normaliser(images)


class _Sample:
    """Batches that are computed in every pass: thousands of floating-point images may not fit into memory."""

    def __init__(self, part: ResidentPart, indices: np.ndarray) -> None:
        self._part = part
        self._indices = indices

    def __iter__(self) -> Iterator[Tensor]:
        yield from self._part.sample_batches(self._indices)


def _to_device(values: Tensor, device: torch.device) -> Tensor:
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values
