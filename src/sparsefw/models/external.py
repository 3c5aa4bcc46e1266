"""Networks of timm and torchvision, which are not imported before a network is asked for."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import torch
from torch import nn

from sparsefw.text import did_you_mean

# Schemas exist as long as the library object that defined them.
_SCHEMAS: list[torch.library.Library] = []
_NO_OPERATORS = "operator torchvision::nms does not exist"


def import_torchvision() -> ModuleType:
    """Import torchvision, even where its compiled operators do not fit this torch, such as beside a CPU build.

    Its networks need none of these operators, but its import describes two of them to torch.export and fails where they are
    missing. Declaring them without an implementation is enough for the import; calling them still fails.
    """
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if str(error) != _NO_OPERATORS:
            raise
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _SCHEMAS.append(library)
    return importlib.import_module("torchvision")


def _import_timm() -> ModuleType:
    import_torchvision()  # timm imports it
    return importlib.import_module("timm")


def build_from_timm(name: str, arguments: dict[str, Any]) -> nn.Module:
    """Build the network of timm of this name with fresh weights."""
    _refuse_downloads(f"timm:{name}", arguments, ("pretrained",))
    timm = _require_installed(f"timm:{name}", _import_timm)
    # timm itself would accept names that download, such as hf-hub:...
    if not timm.is_model(name):
        known = [f"timm:{model}" for model in timm.list_models()]
        raise ValueError(unknown_model(f"timm:{name}", known))
    return _call(f"timm:{name}", timm.create_model, {"model_name": name, "pretrained": False, **arguments})


def build_from_torchvision(name: str, arguments: dict[str, Any]) -> nn.Module:
    """Build the network of torchvision of this name with fresh weights."""
    downloads = ("weights", "weights_backbone", "pretrained", "pretrained_backbone")
    _refuse_downloads(f"torchvision:{name}", arguments, downloads)
    models = _require_installed(f"torchvision:{name}", import_torchvision).models
    if name not in models.list_models():
        known = [f"torchvision:{model}" for model in models.list_models()]
        raise ValueError(unknown_model(f"torchvision:{name}", known))
    builder = models.get_model_builder(name)
    # By default, some networks download the weights of their backbone.
    no_downloads = {key: None for key in downloads if key in inspect.signature(builder).parameters}
    return _call(f"torchvision:{name}", builder, {**no_downloads, **arguments})


def unknown_model(name: str, known: Iterable[str]) -> str:
    """Return the message for a name that is not among the known ones."""
    return f"unknown model {name!r}{did_you_mean(name, known)}; see `sparsefw list models`"


def _require_installed(name: str, load: Callable[[], ModuleType]) -> Any:
    try:
        return load()
    except ModuleNotFoundError as error:
        if error.name not in ("timm", "torchvision"):
            raise
        raise ValueError(f"model {name!r} needs {error.name}: pip install 'sparsefw[vision]'") from error


def _refuse_downloads(name: str, arguments: dict[str, Any], refused: tuple[str, ...]) -> None:
    for key in refused:
        if arguments.get(key):
            raise ValueError(f"model {name!r}: {key} is refused, nothing is downloaded; load a state dict instead")


def _call(name: str, builder: Callable[..., nn.Module], arguments: dict[str, Any]) -> nn.Module:
    """Call a builder that passes its arguments on: a wrong one is noticed only by the constructor that gets it."""
    try:
        return builder(**arguments)
    except TypeError as error:
        raise ValueError(f"model {name!r}: {error}") from error
