"""Images of your own as inputs of a trained network: a folder without labels to calibrate on, one with labels to evaluate on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sparsefw.data.augment import Augment
from sparsefw.data.batches import BatchSettings, DataPart, Normaliser, Share, split_indices
from sparsefw.data.errors import DataError
from sparsefw.data.folders import open_labelled_folder, open_unlabelled_folder
from sparsefw.data.image_source import Source
from sparsefw.data.streaming_part import StreamingPart
from sparsefw.limits import require_regular
from sparsefw.text import first_line

ARRAYS = (".npy", ".safetensors")  # files of inputs that are ready for the network
_BATCH = 64
_WORTH_PROCESSES = 512  # fewer images are decoded sooner than processes are started


@dataclass(frozen=True)
class InputForm:
    """How images become inputs of a network.

    shape      channels, height and width
    mean, std  of pixels divided by 255, per channel
    crop       the part of the shorter side that the network looks at, in the middle
    origin     where all of this is from, for messages
    """

    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop: float
    origin: str

    @property
    def is_gray(self) -> bool:
        return self.shape[0] == 1

    def __str__(self) -> str:
        channels, height, width = self.shape
        colours = "gray" if self.is_gray else f"{channels} channels"
        mean, std = ("/".join(f"{value:.4g}" for value in values) for values in (self.mean, self.std))
        return f"{height} x {width}, {colours}, the central {self.crop:.3g}, mean {mean}, std {std} ({self.origin})"


def unlabelled_images(folder: Path, form: InputForm, device: torch.device, workers: int) -> DataPart:
    """Return all images below a folder."""
    source = open_unlabelled_folder(folder, form.is_gray)
    return _part(source, np.arange(len(source)), form, device, workers)


def labelled_images(
    folder: Path, form: InputForm, classes: int, device: torch.device, workers: int, halves: bool
) -> list[DataPart]:
    """Return the images of CLASS/* as one part, or as two random halves, of which one may choose what the other reports.

    Raise DataError unless there are as many classes as the network tells apart.
    """
    source = open_labelled_folder(folder, form.is_gray)
    if source.classes != classes:
        raise DataError(f"{folder} has {source.classes} class folders, but the network tells {classes} classes apart")
    chosen = split_indices(len(source), 0.5, seed=0) if halves else (np.arange(len(source)),)
    return [_part(source, indices, form, device, workers) for indices in chosen]


def _part(source: Source, indices: np.ndarray, form: InputForm, device: torch.device, workers: int) -> DataPart:
    normaliser = Normaliser(form.mean, form.std, device)
    settings = BatchSettings(form.shape[1:], Augment(), 0, Share(), normaliser, form.crop)
    few = len(indices) < _WORTH_PROCESSES
    return StreamingPart(source, indices, settings, 0 if few else workers, skip_corrupt=False)


def read_arrays(path: Path) -> Sequence[Tensor | dict[str, Tensor]]:
    """Return the inputs in a .npy file, or those in a .safetensors file by name, in batches; DataError if there are none."""
    try:
        require_regular(path)
        named = _read_npy(path) if path.suffix == ".npy" else _read_safetensors(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or first_line(error)}") from None
    sizes = {len(tensor) if tensor.ndim else 0 for tensor in named.values()}
    if len(sizes) != 1 or 0 in sizes:
        raise DataError(f"{path}: expected arrays with one entry per input on their first axis, equally many in each")
    parts = zip(*(tensor.split(_BATCH) for tensor in named.values()), strict=True)
    batches: Iterable[dict[str, Tensor]] = (dict(zip(named, part, strict=True)) for part in parts)
    return [next(iter(batch.values())) if len(named) == 1 and path.suffix == ".npy" else batch for batch in batches]


def _read_npy(path: Path) -> dict[str, Tensor]:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)  # a header may claim more than there is
        is_whole = array.dtype == np.int64
        if not is_whole and not np.issubdtype(array.dtype, np.floating):
            raise TypeError
        return {"inputs": torch.from_numpy(np.array(array, dtype=np.int64 if is_whole else np.float32))}
    except (ValueError, EOFError, TypeError, AttributeError):
        raise DataError(f"{path}: expected one array of inputs as the network takes them, float32 or int64") from None


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (SafetensorError, ValueError) as error:
        raise DataError(f"{path}: is damaged, or no safetensors file: {first_line(error)}") from None
