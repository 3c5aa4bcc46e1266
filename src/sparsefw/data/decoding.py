"""Decode a whole part of a data set into memory, once: the result is cached on disk under a hash of the source files."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from sparsefw.atomic_io import parse_json
from sparsefw.child_processes import end_with_parent
from sparsefw.data.cache_entries import content_hash, replaced_entry
from sparsefw.data.errors import DataError
from sparsefw.data.image_source import ArraySource, FileSource, Item, Source
from sparsefw.limits import RECORD_BYTES, read_bounded

_FILES = ("images.npy", "targets.npy")
_IMAGES_WORTH_PROCESSES = 512  # fewer are decoded sooner than processes are started
_IMAGES_PER_CHUNK = 2048  # at most


@dataclass(frozen=True, eq=False)
class DecodedImages:
    """Images and targets as arrays.

    images    uint8, n x channels x height x width
    targets   classes, int64, or label maps, uint8 of n x height x width
    skipped   the names of images that could not be read, which are in neither
    """

    images: np.ndarray
    targets: np.ndarray
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class _Arrays:
    """The content of a cache entry, which knows skipped images by index: files may be moved."""

    images: np.ndarray
    targets: np.ndarray
    skipped: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class _Chunk:
    """Some decoded images and their targets; `errors` has the message for each image that could not be read, by index."""

    images: list[np.ndarray]
    targets: list[int | np.ndarray]
    errors: dict[int, str]


def decode_images(
    source: Source, cache: Path | None, workers: int, on_corrupt: Literal["error", "skip"]
) -> DecodedImages:
    """Decode all images of a source, which must have one size.

    Args:
        source: where the images are read from.
        cache: a folder in which the result is kept, under a key that changes with any byte of the source files. A damaged
            entry is replaced; several processes may use the folder at once.
        workers: processes that decode.
        on_corrupt: whether an image that cannot be read raises DataError or is skipped.
    """
    if isinstance(source, ArraySource):
        return DecodedImages(np.ascontiguousarray(source.images.transpose(0, 3, 1, 2)), source.targets)
    entry = cache / source.content_hash() if cache is not None and isinstance(source, FileSource) else None
    arrays = None if entry is None else _read_entry(entry)
    if arrays is None:
        arrays = _decode(source, workers, on_corrupt)
        if entry is not None:
            _write_entry(entry, arrays)
    elif arrays.skipped and on_corrupt == "error":
        source.load(arrays.skipped[0])  # raises, as it did when the entry was made
    return DecodedImages(arrays.images, arrays.targets, tuple(source.name(i) for i in arrays.skipped))


def _decode(source: Source, workers: int, on_corrupt: str) -> _Arrays:
    first = _first_readable(source, on_corrupt)
    height, width, channels = first.image.shape
    images = np.empty((len(source), channels, height, width), np.uint8)
    has_label_maps = isinstance(first.target, np.ndarray)
    targets = np.empty((len(source), height, width), np.uint8) if has_label_maps else np.empty(len(source), np.int64)
    skipped: list[int] = []
    ranges = _chunk_ranges(source, workers)
    with contextlib.closing(_decoded_chunks(source, ranges, workers)) as chunks:  # an error ends the processes, too
        for indices, chunk in zip(ranges, chunks, strict=True):
            if chunk.errors and on_corrupt == "error":
                raise DataError(next(iter(chunk.errors.values())))
            skipped += chunk.errors
            readable = [i for i in indices if i not in chunk.errors]
            for i, image, target in zip(readable, chunk.images, chunk.targets, strict=True):
                _check_size(source.name(i), image.shape, images.shape[1:])
                images[i] = image
                targets[i] = target
    if skipped:
        kept = np.delete(np.arange(len(source)), skipped)
        images = images[kept]
        targets = targets[kept]
    return _Arrays(images, targets, tuple(skipped))


def _check_size(name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if shape != expected:
        sizes = [" x ".join(map(str, each[1:])) for each in (shape, expected)]
        raise DataError(
            f"{name} has {sizes[0]} pixels, other images have {sizes[1]}: images of different sizes"
            " cannot be kept in memory together, this data set must be streamed"
        )


def _first_readable(source: Source, on_corrupt: str) -> Item:
    """Return the first image that can be read; all others must have its size."""
    for i in range(len(source)):
        try:
            return source.load(i)
        except DataError:
            if on_corrupt == "error":
                raise
    raise DataError(f"{source.name(0)} and all others are corrupt: nothing is left to train on")


def _chunk_ranges(source: Source, workers: int) -> list[range]:
    """Return the blocks of the source, divided where there are too few of them for all workers."""
    blocks = source.blocks() or [range(len(source))]
    size = max(1, min(_IMAGES_PER_CHUNK, len(source) // (4 * max(1, workers))))
    return [block[start : start + size] for block in blocks for start in range(0, len(block), size)]


def _decoded_chunks(source: Source, ranges: Sequence[range], workers: int) -> Generator[_Chunk]:
    """Decode chunk by chunk, in processes: decoding a small image is mostly Python code, for which threads compete."""
    if workers <= 1 or len(source) < _IMAGES_WORTH_PROCESSES:
        yield from (_decode_chunk(source, indices) for indices in ranges)
        return
    with ProcessPoolExecutor(workers, initializer=_set_source, initargs=(source,)) as pool:
        try:
            yield from pool.map(_decode_chunk_of_process, ranges)
        except BrokenProcessPool:
            raise DataError(
                f"{source.name(0)}: a process that decodes images was killed; is there too little memory?"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


def _decode_chunk(source: Source, indices: range) -> _Chunk:
    chunk = _Chunk([], [], {})
    for i in indices:
        try:
            item = source.load(i)
        except DataError as error:
            chunk.errors[i] = str(error)
            continue
        chunk.images.append(np.ascontiguousarray(item.image.transpose(2, 0, 1)))
        chunk.targets.append(item.target)
    return chunk


_process_source: list[Source] = []  # in a worker process: its copy of the source, which is sent once


def _set_source(source: Source) -> None:
    end_with_parent()  # Python's pools wait for work for ever, also where the process that they work for was killed
    _process_source[:] = [source]


def _decode_chunk_of_process(indices: range) -> _Chunk:
    return _decode_chunk(_process_source[0], indices)


def _write_entry(entry: Path, arrays: _Arrays) -> None:
    with replaced_entry(entry) as folder:
        for name, array in zip(_FILES, (arrays.images, arrays.targets), strict=True):
            np.save(folder / name, array, allow_pickle=False)
        about = {"hash": _entry_hash(folder, arrays.skipped), "skipped": arrays.skipped}
        (folder / "about.json").write_text(json.dumps(about) + "\n")


def _read_entry(entry: Path) -> _Arrays | None:
    """Return the content of an entry; None where there is no entry, or its hash is wrong."""
    try:
        about = parse_json(read_bounded(entry / "about.json", RECORD_BYTES).decode())
        skipped = tuple(about["skipped"])
        if about["hash"] != _entry_hash(entry, skipped):
            return None
        images, targets = (np.load(entry / name, allow_pickle=False) for name in _FILES)
        return _Arrays(images, targets, skipped)
    except (OSError, ValueError, KeyError, TypeError):  # a DataError of content_hash is a ValueError
        return None


def _entry_hash(folder: Path, skipped: tuple[int, ...]) -> str:
    return content_hash(("decoded", skipped), ((name, folder / name) for name in _FILES))
