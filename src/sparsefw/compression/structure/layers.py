"""Layers as the compressors see them: which there are, in which order they run, and their weight as matrices."""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from sparsefw.layer_types import CONVOLUTIONS, TRANSPOSED

AnyConv = nn.modules.conv._ConvNd


def is_layer(module: nn.Module) -> bool:
    """Convolutions and linear layers: what has a weight that filters, rank and weights can be taken from."""
    return isinstance(module, (*CONVOLUTIONS, *TRANSPOSED, nn.Linear))


def is_adorned(module: nn.Module) -> bool:
    """Whether a module computes something else than its class says: hooks, a forward of its own, a parametrized weight."""
    hooked = module._forward_hooks or module._forward_pre_hooks
    return bool(hooked) or "forward" in vars(module) or nn.utils.parametrize.is_parametrized(module)


def groups_of(layer: nn.Module) -> int:
    return layer.groups if isinstance(layer, AnyConv) else 1


def weight_of(layer: nn.Module) -> nn.Parameter:
    weight = layer.weight
    assert isinstance(weight, nn.Parameter)
    return weight


def bias_of(layer: nn.Module) -> nn.Parameter | None:
    bias = layer.bias
    assert bias is None or isinstance(bias, nn.Parameter)
    return bias


def is_channels_last(tensor: Tensor) -> bool:
    """Channels last and nothing else: kernels of 1 x 1, and of one input channel, are both at once and count as plain."""
    return tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()


def channel_axis(module: nn.Module, x: Tensor) -> int:
    """Where the channels of an input or output of this layer are: last, before the kernel's axes, or behind the batch."""
    if isinstance(module, nn.Linear):
        return x.ndim - 1
    return x.ndim - len(module.kernel_size) - 1 if isinstance(module, AnyConv) else 1


def as_matrices(layer: nn.Module, weight: Tensor | None = None) -> Tensor:
    """The weight as (groups, outputs per group, inputs per group * kernel): row i is everything that writes output i."""
    weight = weight_of(layer) if weight is None else weight
    groups = groups_of(layer)
    if isinstance(layer, TRANSPOSED):  # stored as (inputs, outputs per group, *kernel)
        split = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
        return split.transpose(1, 2).flatten(2)
    return weight.reshape(groups, weight.shape[0] // groups, -1)


def from_matrices(layer: nn.Module, matrices: Tensor, shape: Sequence[int]) -> Tensor:
    """The inverse of as_matrices, for a weight of the given shape."""
    if isinstance(layer, TRANSPOSED):
        groups = groups_of(layer)
        per_group = matrices.reshape(groups, shape[1], shape[0] // groups, *shape[2:])
        return per_group.transpose(1, 2).reshape(tuple(shape))
    return matrices.reshape(tuple(shape))


def set_weight(layer: nn.Module, matrices: Tensor) -> None:
    """Write matrices as the weight, in place, keeping its dtype, device and memory format."""
    weight = weight_of(layer)
    with torch.no_grad():
        weight.copy_(from_matrices(layer, matrices, weight.shape))


def shared_layers(model: nn.Module) -> dict[str, str]:
    """Modules that share a parameter with another module -> that other module. (One module under two names is one module.)"""
    owners: dict[nn.Parameter, dict[nn.Module, str]] = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        owner = name.rpartition(".")[0]
        owners.setdefault(p, {}).setdefault(model.get_submodule(owner), owner)
    groups = [list(modules.values()) for modules in owners.values() if len(modules) > 1]
    return {name: next(n for n in names if n != name) for names in groups for name in names}


def replace(model: nn.Module, name: str, new: nn.Module) -> None:
    owner, _, local = name.rpartition(".")
    setattr(model.get_submodule(owner), local, new)


def first_input(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a module reads, given by position or by name."""
    return (*args, *kwargs.values())[0]


def call(model: nn.Module, inputs: Any) -> Any:
    """The model on one example: a tensor, a tuple of positional or a dict of keyword arguments.

    On a copy of them, since a model may work on its inputs in place.
    """
    return call_on(model, cloned(inputs))


def cloned(inputs: Any) -> Any:
    return tree_map(lambda t: t.clone() if isinstance(t, Tensor) else t, inputs)


def call_on(model: nn.Module, inputs: Any) -> Any:
    """The model on the inputs themselves."""
    if isinstance(inputs, dict):
        return model(**inputs)
    if isinstance(inputs, (tuple, list)):
        return model(*inputs)
    return model(inputs)


def chosen(name: str, include: Sequence[str], exclude: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, p) for p in include) and not any(fnmatch.fnmatchcase(name, p) for p in exclude)


@contextlib.contextmanager
def hooks(model: nn.Module, make: Callable[[str, nn.Module], Sequence[Any]]) -> Iterator[None]:
    """Hooks for the length of a block: `make` registers them for one module and returns their handles."""
    handles: list[Any] = []
    try:
        for name, module in model.named_modules():
            handles.extend(make(name, module))
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients for the length of a block; every module's own mode is restored."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def forward_order(model: nn.Module, example: Any, calls: dict[str, int] | None = None) -> list[str]:
    """Names of the convolutions and linear layers in the order of their first call; layers never called are left out.

    With `calls`, how often each is called is counted there.
    """
    order: dict[str, int] = {} if calls is None else calls

    def make(name: str, module: nn.Module) -> Sequence[Any]:
        def count(*_: Any) -> None:
            order[name] = order.get(name, 0) + 1

        return (module.register_forward_pre_hook(count),) if is_layer(module) else ()

    with evaluating(model), hooks(model, make):
        call(model, example)
    return list(order)
