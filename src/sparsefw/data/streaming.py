"""Large sets: decoded by worker processes while the device computes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from sparsefw.data.augment import CENTRE, Augment, augmented, box_sides, centre_sides
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
from sparsefw.data.errors import DataError
from sparsefw.data.source import Item, Source

HELD = 2 << 30  # bytes of a sample that are not read again


class Order(NamedTuple):
    """What a worker is asked for: an image, and the random numbers that change it; None: as it is.

    An array, not a tensor: tensors would be sent to workers through shared memory, with a file each.
    """

    image: int
    numbers: np.ndarray | None


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
        normal: Normal,
        workers: int,
        skip_corrupt: bool,
    ) -> None:
        self._source, self._indices, self._seed, self._share, self.normal = source, indices, seed, share, normal
        self._items = _Items(source, indices, size, augment, skip_corrupt)
        self._size, self._workers = size, workers
        self._skipped: set[int] = set()

    def __len__(self) -> int:
        return len(self._indices)

    @property
    def skipped(self) -> int:
        return len(self._skipped)

    def training(self, epoch: int, start: int, batch: int) -> Iterator[Batch]:
        steps = len(self) // batch
        order = epoch_order(self._indices, self._seed, epoch, self._source.blocks())[: steps * batch]
        numbers = epoch_numbers(steps * batch, self._seed, epoch).numpy()
        ours = [
            range(step * batch + self._share.rank, (step + 1) * batch, self._share.world)
            for step in range(start, steps)
        ]
        # One batch after the other: a million orders at once would be most of a gigabyte.
        orders = ([Order(int(order[i]), numbers[i]) for i in own] for own in ours)
        for read in self.read(orders):
            yield self._batch(read)

    def evaluation(self) -> Iterator[Batch]:
        orders, empty = self._plain_orders(self._indices), True
        for read in self.read(orders):
            if len(read.images):
                empty = False
                yield self._batch(read)
        if orders and empty:
            raise DataError(self._items.nothing_left())

    def sample(self, images: int) -> Iterable[Tensor]:
        chosen, own = sampled(self._indices, images), slice(self._share.rank, None, self._share.world)
        orders = [Order(int(i), u) for i, u in zip(chosen[own], sample_numbers(len(chosen))[own].numpy(), strict=True)]
        together = evaluation_batch((3, *self._size), most=256)
        return _Sample(self, [orders[j : j + together] for j in range(0, len(orders), together)])

    def _plain_orders(self, indices: np.ndarray) -> list[list[Order]]:
        own = indices[self._share.rank :: self._share.world]
        together = evaluation_batch((3, *self._items.plain_size()), most=256)
        return [[Order(int(i), None) for i in own[j : j + together]] for j in range(0, len(own), together)]

    def read(self, orders: Iterable[list[Order]]) -> Iterator[Read]:
        """Batches of decoded images, on the host."""
        loader = DataLoader(
            self._items,
            batch_sampler=orders,
            num_workers=self._workers,
            collate_fn=_collated,
            pin_memory=self.normal.device.type == "cuda",
            generator=torch.Generator(),  # otherwise it draws from the one that dropout uses
        )
        for read in loader:
            if read.error is not None:
                raise DataError(read.error)
            self._skipped.update(read.skipped)
            yield read

    def _batch(self, read: Read) -> Batch:
        return Batch(self.normal(read.images), read.targets.to(self.normal.device, non_blocking=True).long())


class Read(NamedTuple):
    """A batch as it comes from a worker; errors come as text, since torch would add a traceback to those that are raised."""

    images: Tensor
    targets: Tensor
    skipped: list[int]
    error: str | None


@final
class _Sample:
    """Batches that are read in the first pass and held as bytes; what is beyond HELD is read again in every pass."""

    def __init__(self, part: Streaming, orders: list[list[Order]]) -> None:
        self._part, self._orders = part, orders
        self._held: list[Tensor] = []
        self._bytes = 0

    def __iter__(self) -> Iterator[Tensor]:
        there = len(self._held)
        for images in self._held[:there]:
            if len(images):
                yield self._part.normal(images)
        for at, read in enumerate(self._part.read(self._orders[there:]), there):
            if at == len(self._held) and self._bytes < HELD:
                self._held.append(read.images)
                self._bytes += read.images.nbytes
            if len(read.images):
                yield self._part.normal(read.images)


class _Loaded(NamedTuple):
    image: Tensor | None
    target: Tensor | None
    skipped: list[int]
    error: str | None = None


class _Items(Dataset[_Loaded]):
    """Runs in the workers: decodes, crops and resizes one image of a part."""

    def __init__(
        self, source: Source, indices: np.ndarray, size: tuple[int, int], augment: Augment, skip_corrupt: bool
    ) -> None:
        self.source, self.indices, self.size, self.augment = source, indices, size, augment
        self.skip_corrupt = skip_corrupt

    def plain_size(self) -> tuple[int, ...]:
        """Height and width of what evaluation sees: whole label maps need whole images."""
        for index in self.indices:
            try:
                item = self.source.load(int(index))
            except DataError:  # whoever reads it says so
                continue
            return item.target.shape if isinstance(item.target, np.ndarray) else self.size
        return self.size

    def __getitem__(self, order: Order) -> _Loaded:
        skipped: list[int] = []
        for index in self._candidates(order):
            try:
                item = self.source.load(index)
            except DataError as error:
                if not self.skip_corrupt:
                    return _Loaded(None, None, [], str(error))
                skipped.append(index)
                continue
            numbers = None if order.numbers is None else torch.from_numpy(order.numbers)
            return _Loaded(*self._changed(item, numbers), skipped)
        return _Loaded(None, None, skipped, None if order.numbers is None else self.nothing_left())

    def _candidates(self, order: Order) -> Iterator[int]:
        """An image, and in training those after it in the same part: corrupt ones are replaced, so that batches stay full."""
        yield order.image
        if order.numbers is not None:
            place = int(np.searchsorted(self.indices, order.image))
            yield from (int(self.indices[i % len(self.indices)]) for i in range(place + 1, place + len(self.indices)))

    def nothing_left(self) -> str:
        return f"{self.source.name(int(self.indices[0]))} and all others are corrupt: nothing is left"

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
            tall, wide = centre_sides((height, width), self.size, CENTRE if self.augment.resized_crop else 1.0)
            top, left = (height - tall) / 2, (width - wide) / 2
        picture = Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image)
        box = (max(left, 0.0), max(top, 0.0), min(left + wide, width), min(top + tall, height))
        pixels = np.asarray(picture.resize((self.size[1], self.size[0]), Image.Resampling.BILINEAR, box=box))
        mirrored = numbers is not None and self.augment.flip and float(numbers[2]) < 0.5
        pixels = pixels[:, ::-1] if mirrored else pixels
        return torch.from_numpy(np.array(pixels, order="C")).view(*self.size, -1).permute(2, 0, 1)


def _collated(items: Sequence[_Loaded]) -> Read:
    images = [item.image for item in items if item.image is not None]
    targets = [item.target for item in items if item.target is not None]
    skipped = [index for item in items for index in item.skipped]
    error = next((item.error for item in items if item.error is not None), None)
    if not images:
        return Read(torch.empty(0), torch.empty(0), skipped, error)
    return Read(torch.stack(images), torch.stack(targets), skipped, error)
