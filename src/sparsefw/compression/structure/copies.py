"""Copies of networks, as copy.deepcopy makes them and in less time; weights may share the memory of the original's."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Container, Iterator
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
    held = (t for module in model.modules() for t in (*vars(module).values(), *module._buffers.values()))
    return {id(t): t.detach().clone() for t in held if isinstance(t, Tensor) and not t.is_leaf}


def copy_sharing_weights(model: nn.Module, apart: Container[str] = ()) -> nn.Module:
    """Return a copy with parameters of its own that share the memory of the model's, for changes that replace them.

    Args:
        model: The network.
        apart: Names of modules and parameters that get memory of their own, for changes in place.
    """
    shared: dict[int, Any] = {
        id(p): nn.Parameter(p.detach(), p.requires_grad) for p in model.parameters() if type(p) is nn.Parameter
    }
    for name, p in model.named_parameters(remove_duplicate=False):
        if any(outer in apart for outer in _outer_names(name)):
            shared.pop(id(p), None)
    return _copy(model, shared | _values_of_results(model))


def _copy(model: nn.Module, ready: dict[int, Any]) -> nn.Module:
    """Return a deep copy in which objects have the copies in `ready`, by their id.

    deepcopy would take most of its time for the dictionaries of hooks of every module, and for buffers.
    """
    ready |= {id(b): b.clone() for b in model.buffers() if type(b) is Tensor and not b.requires_grad}
    modules = [module for module in model.modules() if _is_plain(type(module))]
    ready |= {id(module): object.__new__(type(module)) for module in modules}
    for module in modules:
        state = vars(ready[id(module)])
        for name, value in vars(module).items():
            if type(value) in (dict, OrderedDict) and not value:
                ready.setdefault(id(value), type(value)())
            state[name] = value if type(value) in _ATOMS else copy.deepcopy(value, ready)
    return copy.deepcopy(model, ready)


def _is_plain(kind: type[nn.Module]) -> bool:
    """Return whether the modules of a class are copied by copying their attributes."""
    if hasattr(kind, "__deepcopy__") or any(getattr(base, "__slots__", ()) for base in kind.__mro__):
        return False
    return all(getattr(kind, name, None) is getattr(nn.Module, name, None) for name in _OWN_COPYING)


def _outer_names(name: str) -> Iterator[str]:
    """Yield a name and those of all modules around it.

    >>> list(_outer_names("a.b.weight"))
    ['a.b.weight', 'a.b', 'a']
    """
    while name:
        yield name
        name = name.rpartition(".")[0]
