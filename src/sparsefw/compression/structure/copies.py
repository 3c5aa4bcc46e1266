"""Copies of networks, as copy.deepcopy makes them and in less time; weights may share the memory of the original's."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

_ATOMS = frozenset((bool, int, float, str, type(None), torch.dtype))  # not copied: nothing can change them
_OWN_COPYING = ("__setstate__", "__getstate__", "__reduce__", "__reduce_ex__")


def copied(model: nn.Module) -> nn.Module:
    """Return a deep copy of a model."""
    return _copy(model, {})


def private_copy(model: nn.Module) -> nn.Module:
    """Return a copy, also of a model that holds results of its last pass, such as pruned weights: these become mere values."""
    return _copy(model, _values_of_results(model))


def _values_of_results(model: nn.Module) -> dict[int, Any]:
    """Map the ids of tensors that hang on a graph, which torch does not copy, to their values."""
    held = (t for module in _modules_of(model) for t in (*vars(module).values(), *module._buffers.values()))
    return {id(t): t.detach().clone() for t in held if isinstance(t, Tensor) and not t.is_leaf}


def copy_sharing_weights(model: nn.Module, apart: Iterable[str] = ()) -> nn.Module:
    """Return a copy with parameters of its own that share the memory of the model's, for changes that replace them.

    Args:
        model: The network.
        apart: Names of modules and parameters that get memory of their own, for changes in place.
    """
    shared: dict[int, Any] = {
        id(p): nn.Parameter(p.detach(), p.requires_grad)
        for module in _modules_of(model)
        for p in module._parameters.values()
        if type(p) is nn.Parameter
    }
    for name in apart:
        for p in _parameters_of(model, name):
            shared.pop(id(p), None)
    return _copy(model, shared | _values_of_results(model))


def _parameters_of(model: nn.Module, name: str) -> Iterable[nn.Parameter]:
    """Return the parameters of the module of this name, or the parameter that has it; none of a name of something else."""
    found: Any = model
    for part in filter(None, name.split(".")):
        found = found._modules.get(part, found._parameters.get(part)) if isinstance(found, nn.Module) else None
    if isinstance(found, nn.Module):
        return found.parameters()
    return () if found is None else (found,)


def _modules_of(model: nn.Module) -> list[nn.Module]:
    """Return list(model.modules()), in less time."""
    found: dict[nn.Module, None] = {}
    waiting = [model]
    while waiting:
        module = waiting.pop()
        if module not in found:
            found[module] = None
            waiting += [part for part in reversed(module._modules.values()) if part is not None]
    return list(found)


def _copy(model: nn.Module, ready: dict[int, Any]) -> nn.Module:
    """Return a deep copy in which objects have the copies in `ready`, by their id.

    deepcopy would take most of its time for the dictionaries, lists and sets of every module, and for buffers.
    """
    everything = _modules_of(model)
    buffers = [b for module in everything for b in module._buffers.values()]
    ready |= {id(b): b.clone() for b in buffers if type(b) is Tensor and not b.requires_grad}
    plain = {kind: _is_plain(kind) for kind in {type(module) for module in everything}}
    modules = [module for module in everything if plain[type(module)]]
    ready |= {id(module): object.__new__(type(module)) for module in modules}
    for module in modules:
        state = vars(ready[id(module)])
        for name, value in vars(module).items():
            state[name] = _value(value, ready)
    return copy.deepcopy(model, ready)


def _value(value: Any, ready: dict[int, Any]) -> Any:
    """Return copy.deepcopy(value, ready), in less time for what modules are full of."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if id(value) in ready:
        return ready[id(value)]
    if kind in (dict, OrderedDict) and _ATOMS.issuperset(map(type, value)):
        mapping = ready[id(value)] = kind()
        mapping.update((key, _value(entry, ready)) for key, entry in value.items())
        return mapping
    if kind is list:
        entries: list[Any] = []
        ready[id(value)] = entries
        entries.extend(_value(entry, ready) for entry in value)
        return entries
    if kind in (set, tuple) and _ATOMS.issuperset(map(type, value)):
        return ready.setdefault(id(value), kind(value))
    return copy.deepcopy(value, ready)


def _is_plain(kind: type[nn.Module]) -> bool:
    """Return whether the modules of a class are copied by copying their attributes."""
    if hasattr(kind, "__deepcopy__") or any(getattr(base, "__slots__", ()) for base in kind.__mro__):
        return False
    return all(getattr(kind, name, None) is getattr(nn.Module, name, None) for name in _OWN_COPYING)
