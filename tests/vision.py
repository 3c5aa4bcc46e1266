"""timm and torchvision, for tests that need one of them."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparsefw.models import import_torchvision


def require_vision(name: str) -> None:
    """Skip the test where the library of a network, such as "timm:resnet18", is not installed."""
    try:
        import_torchvision()  # timm imports it
        importlib.import_module(name.partition(":")[0])
    except ModuleNotFoundError as error:
        pytest.skip(str(error))


def torchvision_detector(name: str, **arguments: Any) -> nn.Module:
    """Return torchvision's detector of that name for five classes, with random weights."""
    import_torchvision()
    provide_operators()
    models = importlib.import_module("torchvision.models.detection")
    sizes = {} if name.startswith("ssd") else {"min_size": 64, "max_size": 96}
    builder = getattr(models, name)
    return builder(weights=None, weights_backbone=None, **{"num_classes": 5, **sizes, **arguments})


@functools.cache
def provide_operators() -> None:
    """Implement the two operators that detectors need, where torchvision's compiled ones do not fit this torch.

    They are registered under their own names: to all who watch operators, a detector looks as it does elsewhere.
    """
    extension = importlib.import_module("torchvision.extension")
    if extension._has_ops():
        return
    boxes = importlib.import_module("torchvision.ops.boxes")
    align = importlib.import_module("torchvision.ops.roi_align")
    in_python = align._roi_align
    library = torch.library.Library("torchvision", "FRAGMENT")
    library.define(
        "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
        "int sampling_ratio, bool aligned) -> Tensor"
    )
    library.impl("roi_align", lambda *args: in_python(*args), "CPU")
    library.impl("nms", suppressed, "CPU")
    _LIBRARIES.append(library)
    for module in (boxes, align):
        module._assert_has_ops = lambda: None
    align._has_ops = lambda: True


_LIBRARIES: list[torch.library.Library] = []  # implementations exist as long as the object that registered them


def suppressed(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    """Return the boxes that non-maximum suppression keeps, best first."""
    order = scores.argsort(descending=True, stable=True)
    low, high = boxes[order].split(2, dim=1)
    area = (high - low).prod(1)
    shared = (torch.minimum(high[:, None], high) - torch.maximum(low[:, None], low)).clamp(min=0).prod(2)
    overlaps = shared / (area[:, None] + area - shared) > threshold
    alive = torch.ones(len(order), dtype=torch.bool)
    for i, row in enumerate(overlaps):
        if alive[i]:
            alive[i + 1 :] &= ~row[i + 1 :]
    return order[alive]
