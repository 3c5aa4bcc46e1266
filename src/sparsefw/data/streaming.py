"""Large sets: decoded by worker processes while the device computes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from sparsefw.data.augment import CENTRE, Augment, augmented, box_sides
from sparsefw.data.batches import Batch, Part, Share, epoch_numbers, epoch_order, evaluation_batch, sampled
from sparsefw.data.errors import DataError
from sparsefw.data.source import Item, Source


class Order(NamedTuple):
    """What a worker is asked for: an image, and the random numbers that change it; None: as it is."""

    image: int
    numbers: Tensor | None


class Streaming(Part):
    """The images `indices` of a source, read by `workers` processes."""

    def __init__(
        self,
        source: Source,
        indices: np.ndarray,
        size: tuple[int, int],
        augment: Augment,
        seed: int,
        share: Share,
        channels_last: bool,
        device: torch.device,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        workers: int,
        skip_corrupt: bool,
    ) -> None:
        self._source, self._indices, self._seed, self._share, self._device = source, indices, seed, share, device
        self._items = _Items(source, size, augment, skip_corrupt)
        self._size, self._workers = size, workers
        self._format = torch.channels_last if channels_last else torch.contiguous_format
        centre, spread = (torch.tensor(v, dtype=torch.float32, device=device).view(1, -1, 1, 1) for v in (mean, std))
        self._scale, self._offset = 1 / (255 * spread), -centre / spread
        self._skipped: set[int] = set()

    def __len__(self) -> int:
        return len(self._indices)

    @property
    def skipped(self) -> int:
        return len(self._skipped)

    def training(self, epoch: int, start: int, batch: int) -> Iterator[Batch]:
        steps = len(self) // batch
        order = epoch_order(self._indices, self._seed, epoch, self._source.blocks())[: steps * batch]
        numbers = epoch_numbers(steps * batch, self._seed, epoch)
        orders = []
        for step in range(start, steps):
            own = range(step * batch + self._share.rank, (step + 1) * batch, self._share.world)
            orders.append([Order(int(order[i]), numbers[i]) for i in own])
        yield from self._read(orders)

    def evaluation(self) -> Iterator[Batch]:
        yield from self._read(self._plain_orders(self._indices))

    def sample(self, images: int) -> Iterable[Tensor]:
        return [batch.inputs for batch in self._read(self._plain_orders(sampled(self._indices, images)))]

    def _plain_orders(self, indices: np.ndarray) -> list[list[Order]]:
        own = indices[self._share.rank :: self._share.world]
        together = evaluation_batch((3, *self._size), most=256)
        return [[Order(int(i), None) for i in own[j : j + together]] for j in range(0, len(own), together)]

    def _read(self, orders: list[list[Order]]) -> Iterator[Batch]:
        pinned = self._device.type == "cuda"
        loader = DataLoader(
            self._items, batch_sampler=orders, num_workers=self._workers, collate_fn=_collated, pin_memory=pinned
        )
        for read in loader:
            self._skipped.update(read.skipped)
            if not len(read.images):
                continue
            images = read.images.to(self._device, non_blocking=True).float()
            inputs = torch.addcmul(self._offset, images, self._scale).contiguous(memory_format=self._format)
            yield Batch(inputs, read.targets.to(self._device, non_blocking=True).long())


class Read(NamedTuple):
    images: Tensor
    targets: Tensor
    skipped: list[int]


class _Items(Dataset[tuple[Tensor | None, Tensor | None, list[int]]]):
    """Runs in the workers: decodes, crops and resizes one image."""

    def __init__(self, source: Source, size: tuple[int, int], augment: Augment, skip_corrupt: bool) -> None:
        self.source, self.size, self.augment, self.skip_corrupt = source, size, augment, skip_corrupt

    def __getitem__(self, order: Order) -> tuple[Tensor | None, Tensor | None, list[int]]:
        skipped: list[int] = []
        index = order.image
        while True:
            try:
                item = self.source.load(index)
                break
            except DataError:
                if not self.skip_corrupt:
                    raise
                skipped.append(index)
            if order.numbers is None:
                return None, None, skipped  # evaluation leaves it out
            index = (index + 1) % len(self.source)  # training takes the next one, so that batches stay full
            if index == order.image:
                raise DataError("no image of this data set can be read")
        image, target = self._changed(item, order.numbers)
        return image, target, skipped

    def _changed(self, item: Item, numbers: Tensor | None) -> tuple[Tensor, Tensor]:
        if isinstance(item.target, np.ndarray):
            image, target = torch.from_numpy(item.image).permute(2, 0, 1)[None], torch.from_numpy(item.target)[None]
            if numbers is not None:
                image = augmented(self.augment, image, numbers[None], self.size).round().clamp(0, 255).byte()
                target = augmented(self.augment, target, numbers[None], self.size)
            return image[0], target[0]
        return self._resized(item.image, numbers), torch.tensor(item.target)

    def _resized(self, image: np.ndarray, numbers: Tensor | None) -> Tensor:
        """The part that training (at random) or evaluation (in the middle) looks at, in the size of the network's input.

        By pillow, which averages where it makes smaller: sampling single pixels of a large photograph would alias.
        """
        from PIL import Image

        height, width = image.shape[:2]
        if numbers is not None and self.augment.resizes:
            sides = box_sides(self.augment, numbers[None], (height, width), self.size)
            tall, wide = float(sides[0]) * height, float(sides[1]) * width
            top, left = float(numbers[0]) * (height - tall), float(numbers[1]) * (width - wide)
        else:
            side = (CENTRE if self.augment.resized_crop else 1.0) * min(height, width)
            # The largest part of the input's shape: the whole where the shapes agree.
            tall, wide = side * min(1, self.size[0] / self.size[1]), side * min(1, self.size[1] / self.size[0])
            top, left = (height - tall) / 2, (width - wide) / 2
        picture = Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image)
        box = (max(left, 0.0), max(top, 0.0), min(left + wide, width), min(top + tall, height))
        pixels = np.asarray(picture.resize((self.size[1], self.size[0]), Image.Resampling.BILINEAR, box=box))
        mirrored = numbers is not None and self.augment.flip and float(numbers[2]) < 0.5
        pixels = pixels[:, ::-1] if mirrored else pixels
        return torch.from_numpy(np.ascontiguousarray(pixels)).view(*self.size, -1).permute(2, 0, 1)


def _collated(items: Sequence[tuple[Tensor | None, Tensor | None, list[int]]]) -> Read:
    images = [image for image, _, _ in items if image is not None]
    targets = [target for _, target, _ in items if target is not None]
    skipped = [index for _, _, those in items for index in those]
    if not images:
        return Read(torch.empty(0), torch.empty(0), skipped)
    return Read(torch.stack(images), torch.stack(targets), skipped)
