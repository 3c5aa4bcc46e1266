"""timm and torchvision, for tests that need one of them."""

from __future__ import annotations

import functools
import importlib
import inspect

import pytest
import torch

from detector import suppressed
from sparsefw.models import import_torchvision


def require_vision(name: str) -> None:
    """Skip the test where the library of a network, such as "timm:resnet18", is not installed."""
    try:
        import_torchvision()  # timm imports it
        importlib.import_module(name.partition(":")[0])
    except ModuleNotFoundError as error:
        pytest.skip(str(error))


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
    in_python = inspect.unwrap(align._roi_align)  # compiled, it would take minutes
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
