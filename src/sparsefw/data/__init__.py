"""Data sets: digits, which come with the package, and readers for the formats in which others are distributed."""

from sparsefw.data.data_folder import find_data_folder
from sparsefw.data.decoding import DecodedImages, decode_images
from sparsefw.data.digits import Digits, load_digits
from sparsefw.data.errors import DataError
from sparsefw.data.image_source import ArraySource, Item, Source
from sparsefw.data.registry import DATASETS, DatasetInfo, dataset, open_part

__all__ = [
    "DATASETS",
    "ArraySource",
    "DataError",
    "DatasetInfo",
    "DecodedImages",
    "Digits",
    "Item",
    "Source",
    "dataset",
    "decode_images",
    "find_data_folder",
    "load_digits",
    "open_part",
]
