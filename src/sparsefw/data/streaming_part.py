"""Large data sets: decoded by worker processes while the device computes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from sparsefw.data.augment import augment_images, centre_crop_sides, crop_fractions
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
from sparsefw.data.errors import DataError
from sparsefw.data.image_source import Item, Source

MAX_HELD_BYTES = 2 << 30  # of the images of a sample that are kept in memory


class ImageRequest(NamedTuple):
    """An image that a worker is asked for, and the random numbers of its augmentation; None: without augmentation.

    The numbers are an array: tensors would be sent to workers through shared memory, with a file each.
    """

    image: int
    numbers: np.ndarray | None


class ReadBatch(NamedTuple):
    """A batch from a worker.

    images     decoded, as bytes
    targets    their classes or label maps
    skipped    indices of corrupt images
    error      a message, because torch would add a traceback to an exception that a worker raises
    """

    images: Tensor
    targets: Tensor
    skipped: list[int]
    error: str | None


class StreamingPart(DataPart):
    """The images `indices` of a source, read by `workers` processes."""

    def __init__(
        self, source: Source, indices: np.ndarray, settings: BatchSettings, workers: int, skip_corrupt: bool
    ) -> None:
        self._source = source
        self._indices = indices
        self._settings = settings
        self._loader = _ImageLoader(source, indices, settings, skip_corrupt)
        self._workers = workers
        self._skipped: set[int] = set()

    def __len__(self) -> int:
        return len(self._indices)

    @property
    def skipped(self) -> int:
        return len(self._skipped)

    def training(self, epoch: int, start: int, batch: int) -> Iterator[Batch]:
        seed = self._settings.seed
        share = self._settings.share
        steps = len(self) // batch
        order = epoch_order(self._indices, seed, epoch, self._source.blocks())[: steps * batch]
        numbers = epoch_numbers(steps * batch, seed, epoch).numpy()
        positions = [range(step * batch + share.rank, (step + 1) * batch, share.world) for step in range(start, steps)]
        # A generator: the requests of a whole epoch can take most of a gigabyte.
        requests = ([ImageRequest(int(order[i]), numbers[i]) for i in some] for some in positions)
        for read in self.read(requests):
            yield self._to_batch(read)

    def evaluation(self) -> Iterator[Batch]:
        requests = self._evaluation_requests()
        is_empty = True
        for read in self.read(requests):
            if len(read.images):
                is_empty = False
                yield self._to_batch(read)
        if requests and is_empty:
            raise DataError(self._loader.nothing_left())

    def sample(self, images: int) -> Iterable[Tensor]:
        local = slice(self._settings.share.rank, None, self._settings.share.world)
        chosen = sample_indices(self._indices, images)
        numbers = sample_numbers(len(chosen))[local].numpy()
        requests = [ImageRequest(int(i), u) for i, u in zip(chosen[local], numbers, strict=True)]
        return _Sample(self, _in_batches(requests, evaluation_batch((3, *self._settings.size), most=256)))

    def _evaluation_requests(self) -> list[list[ImageRequest]]:
        local = self._indices[self._settings.share.rank :: self._settings.share.world]
        at_once = evaluation_batch((3, *self._loader.evaluation_size()), most=256)
        return _in_batches([ImageRequest(int(i), None) for i in local], at_once)

    def read(self, requests: Iterable[list[ImageRequest]]) -> Iterator[ReadBatch]:
        """Yield batches of decoded images, on the host."""
        loader = DataLoader(
            self._loader,
            batch_sampler=requests,
            num_workers=self._workers,
            collate_fn=_collate,
            pin_memory=self._settings.normaliser.device.type == "cuda",
            generator=torch.Generator(),  # otherwise it draws from the one that dropout uses
        )
        for read in loader:
            if read.error is not None:
                raise DataError(read.error)
            self._skipped.update(read.skipped)
            yield read

    def normalise(self, images: Tensor) -> Tensor:
        """Return decoded images as the network gets them, on the device."""
        return self._settings.normaliser(images)

    def _to_batch(self, read: ReadBatch) -> Batch:
        targets = read.targets.to(self._settings.normaliser.device, non_blocking=True)
        return Batch(self.normalise(read.images), targets.long())


def _in_batches(requests: Sequence[ImageRequest], size: int) -> list[list[ImageRequest]]:
    return [list(requests[start : start + size]) for start in range(0, len(requests), size)]


@final
class _Sample:
    """Batches that the first pass reads and keeps as bytes; those beyond MAX_HELD_BYTES are read again in every pass."""

    def __init__(self, part: StreamingPart, requests: list[list[ImageRequest]]) -> None:
        self._part = part
        self._requests = requests
        self._held: list[Tensor] = []
        self._bytes = 0

    def __iter__(self) -> Iterator[Tensor]:
        held = len(self._held)
        for images in self._held[:held]:
            if len(images):
                yield self._part.normalise(images)
        for position, read in enumerate(self._part.read(self._requests[held:]), held):
            if position == len(self._held) and self._bytes < MAX_HELD_BYTES:
                self._held.append(read.images)
                self._bytes += read.images.nbytes
            if len(read.images):
                yield self._part.normalise(read.images)


class _LoadedImage(NamedTuple):
    image: Tensor | None
    target: Tensor | None
    skipped: list[int]
    error: str | None = None


class _ImageLoader(Dataset[_LoadedImage]):
    """Decodes, crops and resizes requested images of a part; runs in the workers."""

    def __init__(self, source: Source, indices: np.ndarray, settings: BatchSettings, skip_corrupt: bool) -> None:
        self.source = source
        self.indices = indices
        self.size = settings.size
        self.augment = settings.augment
        self.centre = settings.centre
        self.skip_corrupt = skip_corrupt

    def evaluation_size(self) -> tuple[int, ...]:
        """Return height and width of the inputs of evaluation: whole images, where targets are label maps."""
        for index in self.indices:
            try:
                item = self.source.load(int(index))
            except DataError:  # reported when the images are read
                continue
            return item.target.shape if isinstance(item.target, np.ndarray) else self.size
        return self.size

    def __getitem__(self, request: ImageRequest) -> _LoadedImage:
        skipped: list[int] = []
        for index in self._candidates(request):
            try:
                item = self.source.load(index)
            except DataError as error:
                if not self.skip_corrupt:
                    return _LoadedImage(None, None, [], str(error))
                skipped.append(index)
                continue
            numbers = None if request.numbers is None else torch.from_numpy(request.numbers)
            image, target = self._transform(item, numbers)
            return _LoadedImage(image, target, skipped)
        return _LoadedImage(None, None, skipped, None if request.numbers is None else self.nothing_left())

    def _candidates(self, request: ImageRequest) -> Iterator[int]:
        """Yield the image, and in training its successors in the part, which replace a corrupt one to keep batches full."""
        yield request.image
        if request.numbers is not None:
            position = int(np.searchsorted(self.indices, request.image))
            successors = range(position + 1, position + len(self.indices))
            yield from (int(self.indices[i % len(self.indices)]) for i in successors)

    def nothing_left(self) -> str:
        """Return the message for a part without any readable image."""
        return f"{self.source.name(int(self.indices[0]))} and all others are corrupt: nothing is left"

    def _transform(self, item: Item, numbers: Tensor | None) -> tuple[Tensor, Tensor]:
        if not isinstance(item.target, np.ndarray):
            return self._crop_and_resize(item.image, numbers), torch.tensor(item.target)
        image = torch.from_numpy(item.image).permute(2, 0, 1)[None]
        labels = torch.from_numpy(item.target)[None]
        if numbers is not None:
            image = augment_images(self.augment, image, numbers[None], self.size).round().clamp(0, 255).byte()
            labels = augment_images(self.augment, labels, numbers[None], self.size)
        return image[0], labels[0]

    def _crop_and_resize(self, image: np.ndarray, numbers: Tensor | None) -> Tensor:
        """Return a random crop (training) or the central crop (evaluation) in the size of the network's input.

        Resized by Pillow, which averages over pixels: interpolating between single pixels of a large photograph would alias.
        """
        from PIL import Image

        height, width = image.shape[:2]
        if numbers is not None and self.augment.resizes:
            fractions = crop_fractions(self.augment, numbers[None], (height, width), self.size)
            crop_height = float(fractions[0]) * height
            crop_width = float(fractions[1]) * width
            top = float(numbers[0]) * (height - crop_height)
            left = float(numbers[1]) * (width - crop_width)
        else:
            fraction = self.centre
            crop_height, crop_width = centre_crop_sides((height, width), self.size, fraction)
            top = (height - crop_height) / 2
            left = (width - crop_width) / 2
        picture = Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image)
        box = (max(left, 0.0), max(top, 0.0), min(left + crop_width, width), min(top + crop_height, height))
        pixels = np.asarray(picture.resize((self.size[1], self.size[0]), Image.Resampling.BILINEAR, box=box))
        if numbers is not None and self.augment.flip and float(numbers[2]) < 0.5:
            pixels = pixels[:, ::-1]
        return torch.from_numpy(np.array(pixels, order="C")).view(*self.size, -1).permute(2, 0, 1)


def _collate(items: Sequence[_LoadedImage]) -> ReadBatch:
    images = [item.image for item in items if item.image is not None]
    targets = [item.target for item in items if item.target is not None]
    skipped = [index for item in items for index in item.skipped]
    error = next((item.error for item in items if item.error is not None), None)
    if not images:
        return ReadBatch(torch.empty(0), torch.empty(0), skipped, error)
    return ReadBatch(torch.stack(images), torch.stack(targets), skipped, error)
