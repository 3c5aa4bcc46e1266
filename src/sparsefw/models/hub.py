"""Networks from elsewhere: timm, torchvision, and the caller's own modules. Nothing here runs unless asked for by name."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import torch
from torch import nn

from sparsefw.text import did_you_mean

# Schemas live as long as the library object that defined them.
_SCHEMAS: list[torch.library.Library] = []
_NO_OPERATORS = "operator torchvision::nms does not exist"


def import_torchvision() -> ModuleType:
    """`import torchvision`, also where its compiled operators do not fit this torch, such as beside a CPU build.

    Its networks need none of these operators, but its import describes two of them to torch.export and fails where they are
    missing. Declared without an implementation they are enough for the import; calling them still fails.
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


def from_timm(name: str, arguments: dict[str, Any]) -> nn.Module:
    _never_pretrained(f"timm:{name}", arguments, ("pretrained",))
    timm = _vision(f"timm:{name}", lambda: (import_torchvision(), importlib.import_module("timm"))[1])
    # Names are looked up first: timm itself would take some, such as hf-hub:..., as leave to download.
    if not timm.is_model(name):
        raise ValueError(unknown(f"timm:{name}", [f"timm:{known}" for known in timm.list_models()]))
    return _called(f"timm:{name}", timm.create_model, {"model_name": name, "pretrained": False, **arguments})


def from_torchvision(name: str, arguments: dict[str, Any]) -> nn.Module:
    downloads = ("weights", "weights_backbone", "pretrained", "pretrained_backbone")
    _never_pretrained(f"torchvision:{name}", arguments, downloads)
    models = _vision(f"torchvision:{name}", import_torchvision).models
    if name not in models.list_models():
        raise ValueError(unknown(f"torchvision:{name}", [f"torchvision:{known}" for known in models.list_models()]))
    make = models.get_model_builder(name)
    # Some networks would fetch the weights of their backbone unless told not to.
    none = {key: None for key in downloads if key in inspect.signature(make).parameters}
    return _called(f"torchvision:{name}", make, {**none, **arguments})


def from_module(name: str, arguments: dict[str, Any]) -> nn.Module:
    """The result of a function that is named "package.module:function". Imports, hence runs, that module."""
    where, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{where}.".startswith(f"{error.name}."):
            raise  # the module exists; something that it imports does not
        raise ValueError(f"model {name!r}: there is no module {where!r}") from error
    make = getattr(module, attribute, None)
    if not callable(make):
        raise ValueError(f"model {name!r}: module {where!r} has no function {attribute!r}")
    check_names(name, make, arguments)
    model = make(**arguments)
    if not isinstance(model, nn.Module):
        raise ValueError(f"model {name!r}: returned a {type(model).__name__}, not a torch.nn.Module")
    return model


def check_names(name: str, make: Callable[..., Any], arguments: Iterable[str]) -> None:
    """ValueError, naming what is accepted, unless `make` takes every argument by name and gets all that it needs."""
    parameters = inspect.signature(make).parameters.values()
    by_name = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    accepted = ", ".join(by_name) or "none"
    anything = any(p.kind is p.VAR_KEYWORD for p in parameters)
    for argument in arguments:
        if argument not in by_name and not anything:
            raise ValueError(f"model {name!r} has no argument {argument!r}; accepted: {accepted}")
    for p in by_name.values():
        if p.default is p.empty and p.name not in arguments:
            raise ValueError(f"model {name!r} needs the argument {p.name!r}; accepted: {accepted}")


def unknown(name: str, known: Iterable[str]) -> str:
    return f"unknown model {name!r}{did_you_mean(name, known)}; see `sparsefw list models`"


def _vision(name: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except ModuleNotFoundError as error:
        if error.name not in ("timm", "torchvision"):
            raise
        raise ValueError(f"model {name!r} needs {error.name}: pip install 'sparsefw[vision]'") from error


def _never_pretrained(name: str, arguments: dict[str, Any], refused: tuple[str, ...]) -> None:
    for key in refused:
        if arguments.get(key):
            raise ValueError(f"model {name!r}: {key} is refused, nothing is downloaded; load a state dict instead")


def _called(name: str, make: Callable[..., nn.Module], arguments: dict[str, Any]) -> nn.Module:
    """These builders hand their arguments on, so that a wrong one shows only when it arrives."""
    try:
        return make(**arguments)
    except TypeError as error:
        raise ValueError(f"model {name!r}: {error}") from error
