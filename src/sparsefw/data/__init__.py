"""Data sets: digits that come with the package, and readers for the formats in which others are found on disk."""

from sparsefw.data.decoded import Decoded, decoded
from sparsefw.data.digits import Digits, load_digits
from sparsefw.data.errors import DataError
from sparsefw.data.locate import folder_of
from sparsefw.data.registry import DATASETS, DatasetInfo, dataset, open_part
from sparsefw.data.source import ArraySource, Item, Source

__all__ = [
    "DATASETS",
    "ArraySource",
    "DataError",
    "DatasetInfo",
    "Decoded",
    "Digits",
    "Item",
    "Source",
    "dataset",
    "decoded",
    "folder_of",
    "load_digits",
    "open_part",
]
