"""Images in WebDataset tars: KEY.jpg beside KEY.cls, read in any order at their offsets."""

from __future__ import annotations

import hashlib
import itertools
import os
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, final

import numpy as np

from sparsefw.atomic_io import replaced_file
from sparsefw.data.cache_entries import VERSION
from sparsefw.data.errors import DataError
from sparsefw.data.image_source import FileSource, Item, checked_class
from sparsefw.data.images import decode_rgb, is_image
from sparsefw.data.shards import find_shards
from sparsefw.limits import require_regular
from sparsefw.text import one_line

PATTERNS = {"train": ("train-*.tar", "*train*.tar"), "test": ("val-*.tar", "validation-*.tar", "*val*.tar")}
_LONGEST_LABEL = 16  # bytes of a .cls file


class Index(NamedTuple):
    """The place of every image: number of its shard, offset and size in bytes, class, name of the member."""

    shard: np.ndarray
    offset: np.ndarray
    size: np.ndarray
    label: np.ndarray
    member: np.ndarray


@final
class TarSource(FileSource):
    """The images of a list of tars, read by an index."""

    def __init__(self, files: Sequence[Path], index: Index, classes: int) -> None:
        super().__init__(classes, None)
        self._files = list(files)
        self._index = index

    def __len__(self) -> int:
        return len(self._index.offset)

    def load(self, i: int) -> Item:
        path = self._files[self._index.shard[i]]
        try:
            with path.open("rb") as file:  # every time: forked workers would share an open file and its position
                file.seek(self._index.offset[i])
                data = file.read(self._index.size[i])
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}") from None
        if len(data) < self._index.size[i]:
            raise DataError(f"{self.name(i)} is cut off: the file has become shorter than it was")
        return Item(decode_rgb(data, self.name(i)), int(self._index.label[i]))

    def name(self, i: int) -> str:
        return f"{self._files[self._index.shard[i]]} member {os.fsdecode(bytes(self._index.member[i]))}"

    def blocks(self) -> list[range]:
        """Return the images of each shard."""
        bounds = [0, *(np.flatnonzero(np.diff(self._index.shard)) + 1).tolist(), len(self)]
        return [range(start, end) for start, end in itertools.pairwise(bounds)]

    def facts(self) -> tuple[object, ...]:
        places = hashlib.sha256()
        for column in (self._index.shard, self._index.offset, self._index.size, self._index.label):
            places.update(column.astype(np.int64).tobytes())
        return ("tar", self.classes, places.hexdigest())

    def file_count(self) -> int:
        return len(self._files)

    def file(self, i: int) -> tuple[str, Path]:
        return self._files[i].name, self._files[i]


def present(folder: Path) -> bool:
    """Return whether a folder holds such tars."""
    return any(any(folder.glob(pattern)) for patterns in PATTERNS.values() for pattern in patterns)


def open_tars(folder: Path, part: str, cache: Path | None, *, classes: int) -> TarSource:
    """Open a part. The index of all tars, which takes minutes for ImageNet, is kept in the folder `cache`."""
    files = find_shards(folder, PATTERNS[part])
    if not files:
        raise DataError(f"{folder} has no {part} part; expected tars {' or '.join(PATTERNS[part])}")
    index_path = None if cache is None else cache / f"tar-index-{_stamp(files)}.npz"
    index = None if index_path is None else _read_index(index_path, files)
    if index is None:
        index = _scan(files)
        if index_path is not None:
            _write_index(index_path, index)
    for i in np.flatnonzero((index.label < 0) | (index.label >= classes))[:1]:
        checked_class(int(index.label[i]), classes, TarSource(files, index, classes).name(int(i)))
    return TarSource(files, index, classes)


def _stamp(files: Sequence[Path]) -> str:
    """Return a hash of names, sizes and times of files; hashing their content would take longer than the scan."""
    facts = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(repr((VERSION, facts)).encode()).hexdigest()


def _write_index(path: Path, index: Index) -> None:
    try:
        with replaced_file(path) as temporary, temporary.open("wb") as file:
            np.savez(file, **index._asdict())
    except OSError as error:
        raise DataError(f"cannot write the cache {path}: {error.strerror or error}") from error


def _read_index(path: Path, files: Sequence[Path]) -> Index | None:
    """Return the index in a file; None where the file is missing or damaged, which the checksums of npz files show."""
    try:
        require_regular(path)
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            index = Index(*(arrays[name] for name in Index._fields))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    is_whole = len({len(array) for array in index}) == 1 and len(index.shard) > 0 and index.shard.max() < len(files)
    return index if is_whole else None


def _scan(files: Sequence[Path]) -> Index:
    entries = [(number, *entry) for number, path in enumerate(files) for entry in _scan_tar(path)]
    shard, offset, size, label, member = zip(*entries, strict=True)
    return Index(
        np.array(shard, np.int32), np.array(offset), np.array(size), np.array(label, np.int64), np.array(member)
    )


def _scan_tar(path: Path) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield offset, size, class and name of every image. The files of a sample have the same key and are adjacent."""
    try:
        length = path.stat().st_size
        with tarfile.open(path, mode="r:") as tar:
            members = (member for member in _members(tar) if member.isfile())
            count = 0
            for key, group in itertools.groupby(members, key=lambda member: _key(member.name)):
                sample = list(group)
                images = [member for member in sample if is_image(os.path.basename(member.name))]
                labels = [member for member in sample if member.name.endswith(".cls")]
                if not images and not labels:
                    continue  # a readme, or files of another kind
                if len(images) != 1 or len(labels) != 1:
                    names = ", ".join(member.name for member in sample)
                    raise DataError(f"{path} sample {key} has {names}; expected one image and one .cls")
                file = tar.extractfile(labels[0])
                text = file.read(_LONGEST_LABEL) if file else b""
                if not text.strip().isdigit() or labels[0].size > _LONGEST_LABEL:
                    raise DataError(f"{path} member {labels[0].name}: {text[:20]!r}; expected the number of a class")
                if images[0].issparse() or images[0].offset_data + images[0].size > length:
                    raise DataError(f"{path} member {images[0].name} is larger than the tar: it is cut off or damaged")
                count += 1
                yield images[0].offset_data, images[0].size, int(text), os.fsencode(images[0].name)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise DataError(f"{path} is not a readable tar: {one_line(error)}") from None
    if not count:
        raise DataError(f"{path} holds no images; expected members KEY.jpg (or .jpeg, .png) and KEY.cls")


def _members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    while (member := tar.next()) is not None:
        yield member
        vars(tar)["members"].clear()  # tarfile would keep all of them, a million for ImageNet


def _key(name: str) -> str:
    """Return the path up to the first dot of the file name."""
    folder, file = os.path.split(name)
    return os.path.join(folder, file.split(".")[0])
