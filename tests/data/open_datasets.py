"""Open data sets for tests, and compare their batches."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsefw.data import DATASETS
from sparsefw.data.batches import Batch, DataPart, Share
from sparsefw.data.loaders import Data, DataConfig, open_data

CPU = torch.device("cpu")


def opened(
    name: str,
    folder: Path | None,
    *,
    seed: int = 0,
    rank: int = 0,
    world: int = 1,
    channels_last: bool = False,
    workers: int = 0,
    **config: Any,
) -> Data:
    settings = DataConfig.model_validate({"name": name, "batch_size": 4, "validation": 0.0, **config})
    share = Share(rank, world)
    return open_data(settings, folder, device=CPU, seed=seed, share=share, channels_last=channels_last, workers=workers)


def normalised(name: str, image: np.ndarray) -> Tensor:
    """Return (x / 255 - mean) / std of an image (height, width, channels), channel by channel, in double precision."""
    info = DATASETS[name]
    planes = [(image[:, :, c] / 255.0 - info.mean[c]) / info.std[c] for c in range(image.shape[2])]
    return torch.from_numpy(np.stack(planes))


def rows(batches: Iterable[Batch]) -> list[tuple[bytes, bytes]]:
    """Return the bytes of every image and of its target."""
    return [
        (x.contiguous().numpy().tobytes(), y.contiguous().numpy().tobytes())
        for inputs, targets in batches
        for x, y in zip(inputs, targets, strict=True)
    ]


def whole(part: DataPart) -> Batch:
    """Return all images of an evaluation as one batch."""
    inputs, targets = zip(*part.evaluation(), strict=True)
    return Batch(torch.cat(inputs), torch.cat(targets))
