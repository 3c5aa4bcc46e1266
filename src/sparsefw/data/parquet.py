"""Images in Parquet shards, as Hugging Face stores them: a column of encoded images, one of labels or label images."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np

from sparsefw.data.errors import DataError
from sparsefw.data.files import content_hash, shards
from sparsefw.data.images import decode_labels, decode_rgb, same_size
from sparsefw.data.source import Format, Item, Source, checked_class

IMAGE_COLUMNS = ("img", "image")
LABEL_COLUMNS = ("fine_label", "label")
BYTES_IN_MEMORY = 256 << 20  # of encoded images, per process


@final
class RowGroups:
    """Row groups that were read lately, of BYTES_IN_MEMORY at most, but always one. Every process has its own."""

    def __init__(self, read: Callable[[int], Any]) -> None:
        self._read = read
        self._tables: OrderedDict[int, Any] = OrderedDict()
        self._bytes = 0

    def __reduce__(self) -> tuple[type[RowGroups], tuple[Callable[[int], Any]]]:
        return RowGroups, (self._read,)  # a copy in another process starts with none

    def __getitem__(self, group: int) -> Any:
        if group in self._tables:
            self._tables.move_to_end(group)
            return self._tables[group]
        table = self._tables[group] = self._read(group)
        self._bytes += table.nbytes
        while self._bytes > BYTES_IN_MEMORY and len(self._tables) > 1:
            self._bytes -= self._tables.popitem(last=False)[1].nbytes
        return table


@final
class ParquetSource(Source):
    """Rows of one or more Parquet files. `meaning` is given where the target is an image of label ids (see decode_labels)."""

    def __init__(
        self,
        files: Sequence[Path],
        classes: int,
        class_names: tuple[str, ...] | None = None,
        targets: Sequence[str] = LABEL_COLUMNS,
        meaning: np.ndarray | None = None,
    ) -> None:
        super().__init__(classes, class_names)
        self._files = list(files)
        self._metadata = [_metadata(path) for path in self._files]
        schema = self._metadata[0].schema.to_arrow_schema()
        self._image = _column(self._files[0], schema, IMAGE_COLUMNS)
        self._target = _column(self._files[0], schema, targets)
        self._meaning = meaning
        self._check_columns()
        if meaning is None:
            self.class_names = _stored_names(schema, self._target) or class_names
            if self.class_names and len(self.class_names) != classes:
                raise DataError(
                    f"{self._files[0]} has {len(self.class_names)} classes in its column {self._target}; expected {classes}"
                )
        self._groups = [(f, g) for f, metadata in enumerate(self._metadata) for g in range(metadata.num_row_groups)]
        rows = [self._metadata[f].row_group(g).num_rows for f, g in self._groups]
        self._starts = [0, *np.cumsum(rows).tolist()]
        if not len(self):
            raise DataError(f"{self._files[0]} holds no rows")
        self._tables = RowGroups(self._read)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def load(self, i: int) -> Item:
        group = self._group(i)
        table, row = self._tables[group], i - self._starts[group]
        image = decode_rgb(self._bytes(table, self._image, row, i), self.name(i))
        if self._meaning is None:
            return Item(image, checked_class(table.column(self._target)[row].as_py(), self.classes, self.name(i)))
        where = f"{self.name(i)}, column {self._target}"
        labels = decode_labels(self._bytes(table, self._target, row, i), where, self._meaning)
        same_size(image, labels, self.name(i))
        return Item(image, labels)

    def name(self, i: int) -> str:
        group = self._group(i)
        file, number = self._groups[group]
        return f"{self._files[file]} row {i - self._starts[group - number]}"

    def blocks(self) -> list[range]:
        return [range(a, b) for a, b in zip(self._starts, self._starts[1:], strict=False) if b > a]

    def fingerprint(self) -> str:
        meaning = None if self._meaning is None else self._meaning.tolist()
        facts = ("parquet", self.classes, self._image, self._target, meaning)
        return content_hash(facts, ((path.name, path) for path in self._files))

    def _group(self, i: int) -> int:
        if not 0 <= i < len(self):
            raise IndexError(i)
        return bisect_right(self._starts, i) - 1

    def _read(self, group: int) -> Any:
        pyarrow = _pyarrow()
        file, number = self._groups[group]
        try:
            # Opened for every row group, with the footer known: no file stays open, so forking and pickling are safe.
            with pyarrow.parquet.ParquetFile(self._files[file], metadata=self._metadata[file]) as opened:
                return opened.read_row_group(number, columns=[self._image, self._target], use_threads=False)
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(f"{self._files[file]} is damaged in row group {number}: {_one_line(error)}") from None

    def _bytes(self, table: Any, column: str, row: int, i: int) -> bytes:
        value = table.column(column)[row].as_py()
        value = value.get("bytes") if isinstance(value, dict) else value
        if not isinstance(value, bytes):
            raise DataError(f"{self.name(i)}: column {column} holds no bytes; expected an encoded image")
        return value

    def _check_columns(self) -> None:
        is_integer = _pyarrow().types.is_integer
        for path, metadata in zip(self._files, self._metadata, strict=True):
            schema = metadata.schema.to_arrow_schema()
            for name in (self._image, self._target):
                if name not in schema.names:
                    raise DataError(f"{path} has no column {name}, unlike {self._files[0].name}")
            kind = schema.field(self._target).type
            if self._meaning is None and not is_integer(kind):
                raise DataError(f"{path}: column {self._target} is {kind}; expected integers, the class of each image")


def _pyarrow() -> Any:
    """Imported when it is needed: it is large, and has no types."""
    import pyarrow.parquet  # type: ignore[import-untyped]

    return pyarrow


def _metadata(path: Path) -> Any:
    pyarrow = _pyarrow()
    try:
        return pyarrow.parquet.read_metadata(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} is not a readable Parquet file: {_one_line(error)}") from None


def _column(path: Path, schema: Any, wanted: Sequence[str]) -> str:
    for name in wanted:
        if name in schema.names:
            return name
    raise DataError(f"{path} has the columns {', '.join(schema.names)}; expected {' or '.join(wanted)}")


def _stored_names(schema: Any, column: str) -> tuple[str, ...] | None:
    """The class names that Hugging Face keeps in the metadata of the schema."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return tuple(str(name) for name in features[column]["names"])
    except (KeyError, TypeError, ValueError):
        return None  # written by another program


def parquet_format(
    classes: int,
    parts: Mapping[str, Sequence[str]],
    folders: Sequence[str] = (".", "data"),
    class_names: tuple[str, ...] | None = None,
    targets: Sequence[str] = LABEL_COLUMNS,
    meaning: np.ndarray | None = None,
) -> Format:
    """Shards SPLIT-*.parquet in one of the folders; `parts` gives the spellings of SPLIT for every part."""

    def files(folder: Path, part: str) -> list[Path]:
        patterns = [pattern for split in parts[part] for pattern in (f"{split}-*.parquet", f"{split}.parquet")]
        return next((found for name in folders if (found := shards(folder / name, patterns))), [])

    def present(folder: Path) -> bool:
        splits = [split for names in parts.values() for split in names]
        return any(any((folder / name).glob(f"{split}*.parquet")) for name in folders for split in splits)

    def open_files(folder: Path, part: str, cache: Path | None) -> ParquetSource:
        found = files(folder, part)
        if not found:
            names = " or ".join(f"{split}-*.parquet" for split in parts[part])
            raise DataError(f"{folder} has no {part} part; expected {names}")
        return ParquetSource(found, classes, class_names, targets, meaning)

    return Format("parquet", present, open_files)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
