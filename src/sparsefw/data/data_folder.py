"""The folder that holds a data set: given by the user, or named by the environment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from sparsefw.data.errors import DataError

if TYPE_CHECKING:
    from sparsefw.data.registry import DatasetInfo

DATA_VARIABLE = "SPARSEFW_DATA"


def find_data_folder(info: DatasetInfo, given: Path | None) -> Path:
    """Return the folder that holds a data set: `given` (or else $SPARSEFW_DATA), or its subfolder named after the data set.

    The subfolder comes first, because several data sets use the same file names. For data sets without files the result has
    no meaning.
    """
    if info.make is not None:
        return Path()
    if given is None and not os.environ.get(DATA_VARIABLE):
        raise DataError(
            f"{info.name}: no folder given; use --data or set {DATA_VARIABLE}. Expected files: {info.files}. {info.obtain}"
        )
    folder = given if given is not None else Path(os.environ[DATA_VARIABLE])
    origin = "--data" if given is not None else DATA_VARIABLE
    if not folder.is_dir():
        raise DataError(
            f"{info.name}: {folder} (from {origin}) is not a folder; expected one with {info.files}. {info.obtain}"
        )
    for candidate in (folder / info.name, folder):
        if candidate.is_dir() and info.present(candidate):
            return candidate
    raise DataError(f"{info.name}: not found in {folder} or {folder / info.name}; expected {info.files}. {info.obtain}")
