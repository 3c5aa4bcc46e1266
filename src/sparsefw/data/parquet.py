"""Images in Parquet shards, as Hugging Face stores them: a column of encoded images and one of labels or label images."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np

from sparsefw.data.errors import DataError
from sparsefw.data.image_source import FileSource, Format, Item, checked_class
from sparsefw.data.images import check_same_size, decode_labels, decode_rgb
from sparsefw.data.shards import find_shards
from sparsefw.limits import ARRAY_BYTES
from sparsefw.text import one_line

IMAGE_COLUMNS = ("img", "image")
LABEL_COLUMNS = ("fine_label", "label")
MAX_BYTES_IN_MEMORY = 256 << 20  # of encoded images, per process
_ROWS_AT_ONCE = 64  # of a row group, until its size is known
_LONGEST_REASON = 200  # characters; messages of Arrow can be very long


@final
class RowGroups:
    """The row groups that were read last: at least one, and otherwise at most MAX_BYTES_IN_MEMORY. Each process has its own."""

    def __init__(self, read: Callable[[int], Any]) -> None:
        self._read = read
        self._tables: OrderedDict[int, Any] = OrderedDict()
        self._bytes = 0

    def __reduce__(self) -> tuple[type[RowGroups], tuple[Callable[[int], Any]]]:
        return RowGroups, (self._read,)  # a copy in another process starts empty

    def __getitem__(self, group: int) -> Any:
        if group in self._tables:
            self._tables.move_to_end(group)
            return self._tables[group]
        table = self._tables[group] = self._read(group)
        self._bytes += table.nbytes
        while self._bytes > MAX_BYTES_IN_MEMORY and len(self._tables) > 1:
            self._bytes -= self._tables.popitem(last=False)[1].nbytes
        return table


@final
class ParquetSource(FileSource):
    """Rows of one or more Parquet files.

    Args:
        files: the shards, in order.
        classes: number of classes.
        class_names: their names, where the files do not state them.
        targets: possible names of the column of targets.
        class_of_id: given where targets are images of label ids (see decode_labels).
    """

    def __init__(
        self,
        files: Sequence[Path],
        classes: int,
        class_names: tuple[str, ...] | None = None,
        targets: Sequence[str] = LABEL_COLUMNS,
        class_of_id: np.ndarray | None = None,
    ) -> None:
        super().__init__(classes, class_names)
        self._files = list(files)
        self._metadata = [_metadata(path) for path in self._files]
        schema = self._metadata[0].schema.to_arrow_schema()
        self._image = _column(self._files[0], schema, IMAGE_COLUMNS)
        self._target = _column(self._files[0], schema, targets)
        self._class_of_id = class_of_id
        self._check_columns()
        if class_of_id is None:
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
        table = self._tables[group]
        row = i - self._starts[group]
        image = decode_rgb(self._bytes(table, self._image, row, i), self.name(i))
        if self._class_of_id is None:
            return Item(image, checked_class(table.column(self._target)[row].as_py(), self.classes, self.name(i)))
        origin = f"{self.name(i)}, column {self._target}"
        labels = decode_labels(self._bytes(table, self._target, row, i), origin, self._class_of_id)
        check_same_size(image, labels, self.name(i))
        return Item(image, labels)

    def name(self, i: int) -> str:
        group = self._group(i)
        file, number = self._groups[group]
        return f"{self._files[file]} row {i - self._starts[group - number]}"

    def blocks(self) -> list[range]:
        return [range(a, b) for a, b in zip(self._starts, self._starts[1:], strict=False) if b > a]

    def facts(self) -> tuple[object, ...]:
        class_of_id = None if self._class_of_id is None else self._class_of_id.tolist()
        return ("parquet", self.classes, self._image, self._target, class_of_id)

    def file_count(self) -> int:
        return len(self._files)

    def file(self, i: int) -> tuple[str, Path]:
        return self._files[i].name, self._files[i]

    def _group(self, i: int) -> int:
        if not 0 <= i < len(self):
            raise IndexError(i)
        return bisect_right(self._starts, i) - 1

    def _read(self, group: int) -> Any:
        pyarrow = _pyarrow()
        file, number = self._groups[group]
        try:
            # Opened for every row group, which is cheap with the known footer: no file stays open across forks and pickles.
            with pyarrow.parquet.ParquetFile(self._files[file], metadata=self._metadata[file]) as opened:
                return self._read_rows(opened, file, number)
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(f"{self._files[file]} is damaged in row group {number}: {_reason(error)}") from None

    def _read_rows(self, opened: Any, file: int, group: int) -> Any:
        """Return a row group as a table, part by part: a value that is stored once can occur in a million rows."""
        parts = []
        size = 0
        columns = [self._image, self._target]
        for part in opened.iter_batches(_ROWS_AT_ONCE, row_groups=[group], columns=columns, use_threads=False):
            size += part.nbytes
            if size > ARRAY_BYTES:
                raise DataError(f"{self._files[file]}: row group {group} unpacks to more than {ARRAY_BYTES:,} bytes")
            parts.append(part)
        rows = sum(part.num_rows for part in parts)
        stated = self._metadata[file].row_group(group).num_rows
        if rows != stated:
            raise DataError(f"{self._files[file]} is damaged: row group {group} has {rows} rows, not {stated}")
        return _pyarrow().Table.from_batches(parts)

    def _bytes(self, table: Any, column: str, row: int, i: int) -> bytes:
        value = table.column(column)[row].as_py()
        value = value.get("bytes") if isinstance(value, dict) else value
        if not isinstance(value, bytes):
            raise DataError(f"{self.name(i)}: column {column} holds no bytes; expected an encoded image")
        return value

    def _check_columns(self) -> None:
        is_integer = _pyarrow().types.is_integer
        for path, metadata in zip(self._files, self._metadata, strict=True):
            if metadata.num_rows > path.stat().st_size:
                raise DataError(f"{path} is damaged: it says that it has {metadata.num_rows:,} rows")
            schema = metadata.schema.to_arrow_schema()
            for name in (self._image, self._target):
                if name not in schema.names:
                    raise DataError(f"{path} has no column {name}, unlike {self._files[0].name}")
            column_type = schema.field(self._target).type
            if self._class_of_id is None and not is_integer(column_type):
                raise DataError(
                    f"{path}: column {self._target} is {column_type}; expected integers, the class of each image"
                )


def _pyarrow() -> Any:
    """Import pyarrow, which is large, when it is needed."""
    import pyarrow.parquet  # type: ignore[import-untyped]

    return pyarrow


def _metadata(path: Path) -> Any:
    pyarrow = _pyarrow()
    try:
        return pyarrow.parquet.read_metadata(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} is not a readable Parquet file: {_reason(error)}") from None


def _column(path: Path, schema: Any, wanted: Sequence[str]) -> str:
    for name in wanted:
        if name in schema.names:
            return name
    raise DataError(f"{path} has the columns {', '.join(schema.names)}; expected {' or '.join(wanted)}")


def _stored_names(schema: Any, column: str) -> tuple[str, ...] | None:
    """Return the class names that Hugging Face writes into the metadata of the schema; None in files of other programs."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return tuple(str(name) for name in features[column]["names"])
    except (KeyError, TypeError, ValueError):
        return None


def parquet_format(
    classes: int,
    parts: Mapping[str, Sequence[str]],
    folders: Sequence[str] = (".", "data"),
    class_names: tuple[str, ...] | None = None,
    targets: Sequence[str] = LABEL_COLUMNS,
    class_of_id: np.ndarray | None = None,
) -> Format:
    """Return the format of shards SPLIT-*.parquet.

    Args:
        classes, class_names, targets, class_of_id: as of ParquetSource.
        parts: for every part, the possible spellings of SPLIT.
        folders: the subfolders in which shards are looked for.
    """

    def files(folder: Path, part: str) -> list[Path]:
        patterns = [pattern for split in parts[part] for pattern in (f"{split}-*.parquet", f"{split}.parquet")]
        return next((shards for name in folders if (shards := find_shards(folder / name, patterns))), [])

    def present(folder: Path) -> bool:
        splits = [split for names in parts.values() for split in names]
        return any(any((folder / name).glob(f"{split}*.parquet")) for name in folders for split in splits)

    def open_files(folder: Path, part: str, cache: Path | None) -> ParquetSource:
        shards = files(folder, part)
        if not shards:
            names = " or ".join(f"{split}-*.parquet" for split in parts[part])
            raise DataError(f"{folder} has no {part} part; expected {names}")
        return ParquetSource(shards, classes, class_names, targets, class_of_id)

    return Format("parquet", present, open_files)


def _reason(error: BaseException) -> str:
    return one_line(error)[:_LONGEST_REASON]
