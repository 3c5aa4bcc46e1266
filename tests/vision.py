"""timm and torchvision, for tests that need one of them."""

from __future__ import annotations

import importlib

import pytest

from sparsefw.models import import_torchvision


def require_vision(name: str) -> None:
    """Skip the test where the library of a network, such as "timm:resnet18", is not installed."""
    try:
        import_torchvision()  # timm imports it
        importlib.import_module(name.partition(":")[0])
    except ModuleNotFoundError as error:
        pytest.skip(str(error))
