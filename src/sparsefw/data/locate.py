"""Where data lie: in a folder that is given, or in the one that the environment names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from sparsefw.data.errors import DataError

if TYPE_CHECKING:
    from sparsefw.data.registry import DatasetInfo

VARIABLE = "SPARSEFW_DATA"


def folder_of(info: DatasetInfo, given: Path | None) -> Path:
    """The folder that holds the data set: the one of its name in the folder given (or else in $SPARSEFW_DATA), or that itself.

    The one of its name comes first: several data sets use the same file names. For data that need no files the
    result does not matter.
    """
    if info.make is not None:
        return Path()
    if given is None and not os.environ.get(VARIABLE):
        raise DataError(
            f"{info.name}: no folder given; use --data or set {VARIABLE}. Expected files: {info.files}. {info.obtain}"
        )
    folder = given if given is not None else Path(os.environ[VARIABLE])
    origin = "--data" if given is not None else VARIABLE
    if not folder.is_dir():
        raise DataError(
            f"{info.name}: {folder} (from {origin}) is not a folder; expected one with {info.files}. {info.obtain}"
        )
    for place in (folder / info.name, folder):
        if place.is_dir() and info.present(place):
            return place
    raise DataError(f"{info.name}: not found in {folder} or {folder / info.name}; expected {info.files}. {info.obtain}")
