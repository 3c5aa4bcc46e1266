"""Computed tensors: weights that parametrizations and hooks of torch.nn.utils compute anew in every pass.

Their values can be stored in their place, as ordinary parameters: the module is then of the class that it had before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.nn.utils.parametrize import is_parametrized
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from sparsefw.compression.structure.layers import evaluating

# What each hook computes a tensor from, as endings of its name.
_ENDINGS: dict[type, tuple[str, ...]] = {
    prune.BasePruningMethod: ("_orig", "_mask"),
    SpectralNorm: ("_orig", "_u", "_v"),
    WeightNorm: ("_g", "_v"),
}


def computed_tensors(module: nn.Module) -> list[str]:
    """Return the names of a module's tensors that are computed, those first that others are computed from.

    >>> computed_tensors(nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)))
    ['weight']
    """
    names = {tensor for hook in module._forward_pre_hooks.values() for tensor in [_tensor_of(hook)] if tensor}
    if is_parametrized(module):
        names |= set(_parametrizations(module))
    return sorted(names, key=lambda name: (-len(name), name))  # weight_v before weight


def sources_of(module: nn.Module, tensor: str) -> dict[nn.Parameter, nn.Module]:
    """Map the parameters from which a tensor is computed to the modules that own them."""
    if is_parametrized(module, tensor):
        parts = list(_parametrizations(module)[tensor].modules())
        return {p: part for part in parts for p in part.parameters(recurse=False)}
    names = [tensor + ending for hook in module._forward_pre_hooks.values() for ending in _endings(hook, tensor)]
    return {p: module for name in names for p in [module._parameters.get(name)] if p is not None}


def computed_by(module: nn.Module, tensor: str) -> str:
    """Return the names of the classes that compute a tensor."""
    if is_parametrized(module, tensor):
        return ", ".join(type(part).__name__.lstrip("_") for part in _parametrizations(module)[tensor].children())
    hooks = [hook for hook in module._forward_pre_hooks.values() if _tensor_of(hook) == tensor]
    return ", ".join(type(hook).__name__ for hook in hooks)


def value_of(module: nn.Module, tensor: str) -> Tensor:
    """Return a copy of what a tensor is in evaluation."""
    with evaluating(module):
        for hook in module._forward_pre_hooks.values():
            if _tensor_of(hook):
                hook(module, ())
        value = getattr(module, tensor)
        assert isinstance(value, Tensor)
        return value.detach().clone()


def store(module: nn.Module, tensor: str, value: nn.Parameter) -> None:
    """Make a computed tensor of a module an ordinary parameter, in place; without effect on other modules of its class."""
    if is_parametrized(module, tensor):
        _drop_parametrizations(module, tensor)
    else:
        _drop_hooks(module, tensor)
    module.register_parameter(tensor, value)


def _parametrizations(module: nn.Module) -> nn.ModuleDict:
    lists = module.parametrizations
    assert isinstance(lists, nn.ModuleDict)
    return lists


def _drop_parametrizations(module: nn.Module, tensor: str) -> None:
    # Copies of a module have its class, so the property of the class stays, and the module gets another class.
    del _parametrizations(module)[tensor]
    known = type(module)
    base = known.__bases__[0]
    if not len(_parametrizations(module)):
        del module.parametrizations
        module.__class__ = base
        return
    kept = {name: value for name, value in vars(known).items() if name not in (tensor, "__dict__", "__weakref__")}
    module.__class__ = type(known.__name__, (base,), kept)


def _drop_hooks(module: nn.Module, tensor: str) -> None:
    endings = {ending for hook in module._forward_pre_hooks.values() for ending in _endings(hook, tensor)}
    registries: Sequence[dict[int, Any]] = (module._forward_pre_hooks, module._state_dict_hooks)
    for registry in (*registries, module._load_state_dict_pre_hooks):
        for key, hook in list(registry.items()):
            if tensor in (_tensor_of(hook), _tensor_of(getattr(hook, "fn", None))):
                del registry[key]
    vars(module).pop(tensor, None)
    for ending in endings:
        module._parameters.pop(tensor + ending, None)
        module._buffers.pop(tensor + ending, None)


def _tensor_of(hook: Any) -> str | None:
    """Return the name of the tensor that a hook of torch.nn.utils computes; None for any other hook."""
    name = getattr(hook, "_tensor_name" if isinstance(hook, prune.BasePruningMethod) else "name", None)
    return name if isinstance(hook, tuple(_ENDINGS)) else None


def _endings(hook: Any, tensor: str) -> tuple[str, ...]:
    if _tensor_of(hook) != tensor:
        return ()
    return next(endings for kind, endings in _ENDINGS.items() if isinstance(hook, kind))


def placeholder(shape: Sequence[int], like: torch.dtype) -> nn.Parameter:
    """Return a parameter of this shape that takes no memory, until one that is loaded takes its place."""
    return nn.Parameter(torch.empty(tuple(shape), dtype=like, device="meta"))
