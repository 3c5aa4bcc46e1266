"""A whole part of a data set in memory, decoded once and kept on disk under the hash of the files it came from."""

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

from sparsefw.data.errors import DataError
from sparsefw.data.files import content_hash, written_aside
from sparsefw.data.source import ArraySource, Item, Source

_FILES = ("images.npy", "targets.npy")
_FEW = 512  # images that are decoded sooner than processes are started


@dataclass(frozen=True, eq=False)
class Decoded:
    """Images, uint8 of n x channels x height x width; classes, int64, or labels, uint8 of n x height x width.

    `skipped` names the images that could not be read: they are in neither.
    """

    images: np.ndarray
    targets: np.ndarray
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class _Arrays:
    """What a cache holds; the skipped images are known by index, since files may be moved."""

    images: np.ndarray
    targets: np.ndarray
    skipped: tuple[int, ...]


def decoded(source: Source, cache: Path | None, workers: int, on_corrupt: Literal["error", "skip"]) -> Decoded:
    """All images of a source, which must have one size. Decoding is done by `workers` processes.

    With a `cache` folder the result is kept there, under a key that changes with any byte of the source files. A damaged
    entry is made again; processes may use the same folder at the same time.
    """
    if isinstance(source, ArraySource):
        return Decoded(np.ascontiguousarray(source.images.transpose(0, 3, 1, 2)), source.targets)
    key = None if cache is None else source.fingerprint()
    entry = None if cache is None or key is None else cache / key
    arrays = None if entry is None else _read(entry)
    if arrays is None:
        arrays = _decode(source, workers, on_corrupt)
        if entry is not None:
            _write(entry, arrays)
    elif arrays.skipped and on_corrupt == "error":
        source.load(arrays.skipped[0])  # raises, as it did when the entry was made
    return Decoded(arrays.images, arrays.targets, tuple(source.name(i) for i in arrays.skipped))


def _decode(source: Source, workers: int, on_corrupt: str) -> _Arrays:
    first = _first(source, on_corrupt)
    height, width, channels = first.image.shape
    images = np.empty((len(source), channels, height, width), np.uint8)
    pixelwise = isinstance(first.target, np.ndarray)
    targets = np.empty((len(source), height, width), np.uint8) if pixelwise else np.empty(len(source), np.int64)
    skipped: list[int] = []
    pieces = _pieces(source, workers)
    with contextlib.closing(_pieces_read(source, pieces, workers)) as results:  # an error ends the processes, too
        for piece, (some, their, corrupt) in zip(pieces, results, strict=True):
            if corrupt and on_corrupt == "error":
                raise DataError(next(iter(corrupt.values())))
            skipped += corrupt
            for i, image, target in zip((i for i in piece if i not in corrupt), some, their, strict=True):
                if image.shape != images.shape[1:]:
                    sizes = [" x ".join(map(str, shape[1:])) for shape in (image.shape, images.shape[1:])]
                    raise DataError(
                        f"{source.name(i)} has {sizes[0]} pixels, other images have {sizes[1]}: images of different sizes"
                        " cannot be kept in memory together, this data set must be streamed"
                    )
                images[i], targets[i] = image, target
    if skipped:
        left = np.delete(np.arange(len(source)), skipped)
        images, targets = images[left], targets[left]
    return _Arrays(images, targets, tuple(skipped))


_Piece = tuple[
    list[np.ndarray], list[int | np.ndarray], dict[int, str]
]  # images, targets, what is wrong with the others


def _read_piece(source: Source, piece: range) -> _Piece:
    images: list[np.ndarray] = []
    targets: list[int | np.ndarray] = []
    corrupt: dict[int, str] = {}
    for i in piece:
        try:
            item = source.load(i)
        except DataError as error:
            corrupt[i] = str(error)
            continue
        images.append(np.ascontiguousarray(item.image.transpose(2, 0, 1)))
        targets.append(item.target)
    return images, targets, corrupt


def _pieces(source: Source, workers: int) -> list[range]:
    """Blocks of the source, cut where there are too few of them for all workers."""
    blocks = source.blocks() or [range(len(source))]
    most = max(1, min(2048, len(source) // (4 * max(1, workers))))
    return [block[a : a + most] for block in blocks for a in range(0, len(block), most)]


def _pieces_read(source: Source, pieces: Sequence[range], workers: int) -> Generator[_Piece]:
    """By processes: most of decoding a small image is Python code, in which threads only wait for each other."""
    if workers <= 1 or len(source) < _FEW:
        yield from (_read_piece(source, piece) for piece in pieces)
        return
    with ProcessPoolExecutor(workers, initializer=_have, initargs=(source,)) as pool:
        try:
            yield from pool.map(_read_piece_here, pieces)
        except BrokenProcessPool:
            raise DataError(
                f"{source.name(0)}: a process that decodes images was killed; is there too little memory?"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


_here: list[Source] = []  # in a worker process: its copy of the source, sent once


def _have(source: Source) -> None:
    _here[:] = [source]


def _read_piece_here(piece: range) -> _Piece:
    return _read_piece(_here[0], piece)


def _first(source: Source, on_corrupt: str) -> Item:
    """The first image that can be read: all others have its size."""
    for i in range(len(source)):
        try:
            return source.load(i)
        except DataError:
            if on_corrupt == "error":
                raise
    raise DataError(f"{source.name(0)} and all others are corrupt: nothing is left to train on")


def _write(entry: Path, arrays: _Arrays) -> None:
    with written_aside(entry) as aside:
        for name, array in zip(_FILES, (arrays.images, arrays.targets), strict=True):
            np.save(aside / name, array, allow_pickle=False)
        about = {"hash": _hash(aside, arrays.skipped), "skipped": arrays.skipped}
        (aside / "about.json").write_text(json.dumps(about) + "\n")


def _read(entry: Path) -> _Arrays | None:
    """None where there is no entry, or one that is not what was written."""
    try:
        about = json.loads((entry / "about.json").read_text())
        skipped = tuple(about["skipped"])
        if about["hash"] != _hash(entry, skipped):
            return None
        images, targets = (np.load(entry / name, allow_pickle=False) for name in _FILES)
        return _Arrays(images, targets, skipped)
    except (OSError, ValueError, KeyError, TypeError):  # a DataError of _hash is a ValueError
        return None


def _hash(folder: Path, skipped: tuple[int, ...]) -> str:
    return content_hash(("decoded", skipped), ((name, folder / name) for name in _FILES))
