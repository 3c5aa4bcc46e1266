"""Networks that the user's own code makes: subclasses of torch.nn.Module, and functions under @model_factory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

from sparsefw.models.arguments import check_argument_names
from sparsefw.own_code import import_code, names_code, require_trust

F = TypeVar("F", bound=Callable[..., nn.Module])
_FACTORIES: list[Callable[..., nn.Module]] = []


def model_factory(function: F) -> F:
    """Decorator: let configurations name this function, as "package.module:function", as the maker of their network.

    Other functions are never called by a name in a file: such a name could be that of any function of any module.
    """
    _FACTORIES.append(function)
    return function


def is_own_network(name: str) -> bool:
    """Return whether the user's own code makes the network of this name.

    >>> is_own_network("mine.nets:make"), is_own_network("timm:resnet18")
    (True, False)
    """
    return names_code(name) and name.partition(":")[0] not in ("timm", "torchvision")


def require_trusted_network(name: str, trust: bool) -> None:
    """Raise ValueError if the user's own code makes the network of this name, and is not trusted."""
    if is_own_network(name):
        require_trust("model.name", name, trust)


def build_from_code(name: str, arguments: dict[str, Any], trust: bool, field: str) -> nn.Module:
    """Return the network that the class or the function "package.module:Attribute" makes."""
    builder = _declared(name, trust, field)
    check_argument_names(name, builder, arguments)
    model = builder(**arguments)
    if not isinstance(model, nn.Module):
        raise ValueError(f"{field}={name!r}: returned a {type(model).__name__}, not a torch.nn.Module")
    return model


def _declared(name: str, trust: bool, field: str) -> Callable[..., nn.Module]:
    """Import a class or a function, and refuse whatever is not declared to make networks."""
    module = import_code(field, name, trust)
    attribute = name.partition(":")[2]
    builder = getattr(module, attribute, None)
    if builder is None:
        raise ValueError(f"{field}={name!r}: module {module.__name__!r} has no {attribute!r}")
    is_network = isinstance(builder, type) and issubclass(builder, nn.Module)
    if not is_network and not any(builder is factory for factory in _FACTORIES):
        raise ValueError(
            f"{field}={name!r}: {attribute!r} was not called; it must be a subclass of torch.nn.Module, "
            "or a function under @sparsefw.models.model_factory"
        )
    return builder
