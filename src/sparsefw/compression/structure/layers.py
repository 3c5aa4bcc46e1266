"""Layers: convolutions and linear layers, the order in which they run, and their weights as matrices."""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from sparsefw.geometry.matrices import as_matrices as weight_as_matrices
from sparsefw.geometry.matrices import from_matrices as weight_from_matrices
from sparsefw.layer_types import CONVOLUTIONS, TRANSPOSED, output_axis

AnyConv = nn.modules.conv._ConvNd


def is_layer(module: nn.Module) -> bool:
    """Return whether it is a convolution or linear layer: its weight has filters, a rank and entries to remove."""
    return isinstance(module, (*CONVOLUTIONS, *TRANSPOSED, nn.Linear))


def is_customised(module: nn.Module) -> bool:
    """Return whether a module may compute something else than its class: hooks, a patched forward, a parametrized weight."""
    hooked = module._forward_hooks or module._forward_pre_hooks
    return bool(hooked) or "forward" in vars(module) or nn.utils.parametrize.is_parametrized(module)


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside torch.compile and DistributedDataParallel."""
    return with_wrappers(model)[-1]


def with_wrappers(model: nn.Module) -> list[nn.Module]:
    """Return torch.compile and DistributedDataParallel around a model, the outermost first, and then the model itself."""
    found = [model]
    while not isinstance(model, torch.jit.ScriptModule):
        inner = (
            model.module
            if isinstance(model, nn.parallel.DistributedDataParallel)
            else getattr(model, "_orig_mod", model)
        )
        if inner is model:
            break
        model = inner
        found.append(model)
    return found


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
    """Return whether it is stored channels last only: kernels of 1 x 1 or of one input channel are in both formats."""
    return tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()


def channel_axis(module: nn.Module, x: Tensor) -> int:
    """Return the axis of the channels in an input or output of this layer."""
    if isinstance(module, nn.Linear):
        return x.ndim - 1
    return x.ndim - len(module.kernel_size) - 1 if isinstance(module, AnyConv) else 1


def as_matrices(layer: nn.Module, weight: Tensor | None = None) -> Tensor:
    """Return the weight as (groups, outputs per group, inputs per group * kernel): row i holds all that writes output i.

    >>> as_matrices(nn.Conv2d(4, 6, 3, groups=2)).shape
    torch.Size([2, 3, 18])
    """
    weight = weight_of(layer) if weight is None else weight
    return weight_as_matrices(weight, output_axis(layer), groups_of(layer))


def from_matrices(layer: nn.Module, matrices: Tensor, shape: Sequence[int]) -> Tensor:
    """Invert as_matrices, for a weight of the given shape."""
    return weight_from_matrices(matrices, shape, output_axis(layer), groups_of(layer))


def set_weight(layer: nn.Module, matrices: Tensor) -> None:
    """Write matrices as the weight, in place, keeping its dtype, device and memory format."""
    weight = weight_of(layer)
    with torch.no_grad():
        weight.copy_(from_matrices(layer, matrices, weight.shape))


def bare_tensor(model: nn.Module, name: str) -> Tensor | None:
    """Return the parameter or buffer of this name; None if a module has it."""
    owner, _, local = name.rpartition(".")
    module = model.get_submodule(owner)
    return module._parameters.get(local, module._buffers.get(local))


def axis_of_channels(bare: Tensor) -> int | None:
    """Return the axis of channels in a tensor outside of layers: its only long one, or the last of a table.

    A table is (rows, channels) or (1, positions, channels).
    """
    long = [axis for axis, length in enumerate(bare.shape) if length > 1]
    if len(long) > 1:
        is_table = bare.ndim == 2 or (bare.ndim == 3 and long == [1, 2])
        return bare.ndim - 1 if is_table else None
    return long[0] if long else 0


def may_be_of_channels(buffer: Tensor) -> bool:
    """Return whether a buffer may be a scale, an offset or a mask of channels; whole numbers are indices and counts."""
    return buffer.numel() > 1 and (buffer.is_floating_point() or buffer.dtype == torch.bool)


def shared_layers(model: nn.Module) -> dict[str, str]:
    """Map modules that share a parameter to the other module. (One module under two names is one module.)"""
    owners: dict[nn.Parameter, dict[nn.Module, str]] = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        owner = name.rpartition(".")[0]
        owners.setdefault(p, {}).setdefault(model.get_submodule(owner), owner)
    partners: dict[str, str] = {}
    for modules in owners.values():
        names = list(modules.values())
        if len(names) > 1:
            partners |= {name: next(other for other in names if other != name) for name in names}
    return partners


def replace_module(model: nn.Module, name: str, new: nn.Module) -> None:
    """Put another module in the place of the one of this name."""
    owner, _, local = name.rpartition(".")
    setattr(model.get_submodule(owner), local, new)


def replace_parameter(model: nn.Module, name: str, new: nn.Parameter) -> None:
    """Put another parameter in the place of the one of this name."""
    owner, _, local = name.rpartition(".")
    setattr(model.get_submodule(owner), local, new)


def replace_everywhere(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put another module in the place of one, under all of its names."""
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if module is old:
            replace_module(model, name, new)


def first_input(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the first input of a module, given by position or by name."""
    return (*args, *kwargs.values())[0]


def call_on_copy(model: Callable[..., Any], inputs: Any) -> Any:
    """Run the model on a copy of the inputs, because a model may change them in place."""
    return call(model, cloned(inputs))


def cloned(inputs: Any) -> Any:
    return tree_map(lambda t: t.clone() if isinstance(t, Tensor) else t, inputs)


def call(model: Callable[..., Any], inputs: Any) -> Any:
    """Run the model on the inputs themselves."""
    positional, by_name = arguments_of(inputs)
    return model(*positional, **by_name)


def arguments_of(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and the keyword arguments: a tensor, a tuple or list, a dict, or both as ((x, ...), {...}).

    >>> arguments_of(((1, 2), {"y": 3})), arguments_of((1, {"y": 3}))
    (((1, 2), {'y': 3}), ((1, {'y': 3}), {}))
    """
    match inputs:
        case dict():
            return (), inputs
        case (tuple() as positional, dict() as by_name) if isinstance(inputs, tuple):
            return positional, by_name
        case tuple() | list():
            return tuple(inputs), {}
    return (inputs,), {}


def is_chosen(name: str, include: Sequence[str], exclude: Sequence[str]) -> bool:
    """Return whether a name matches a pattern to include and none to exclude."""
    return any(fnmatch.fnmatchcase(name, p) for p in include) and not any(fnmatch.fnmatchcase(name, p) for p in exclude)


@contextlib.contextmanager
def hooks(model: nn.Module, make: Callable[[str, nn.Module], Sequence[Any]]) -> Iterator[None]:
    """Hooks for the duration of a block: `make` registers them for one module and returns their handles."""
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
    """Evaluation mode without gradients for the duration of a block; afterwards every module has its previous mode."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def hint_at_labels(example: Any) -> str:
    """Return what to say of an example that does not fit, where its last part may be labels."""
    return "; an example holds no labels" if isinstance(example, (tuple, list)) and len(example) > 1 else ""


@contextlib.contextmanager
def plain_transformer_layers() -> Iterator[None]:
    """Let torch's transformer layers call their parts for the duration of a block.

    In evaluation mode without gradients, a fused kernel would read the weights of their linear layers, whatever these compute.
    """
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def forward_order(model: nn.Module, example: Any) -> list[str]:
    """Return the names of the convolutions and linear layers that are called, in the order of their first call."""
    return list(count_calls(model, example))


def count_calls(model: nn.Module, example: Any) -> dict[str, int]:
    """Count the calls of every convolution and linear layer, in the order of their first call; omit those never called."""
    calls: dict[str, int] = {}

    def make(name: str, module: nn.Module) -> Sequence[Any]:
        def count(*_: Any) -> None:
            calls[name] = calls.get(name, 0) + 1

        return (module.register_forward_pre_hook(count),) if is_layer(module) else ()

    with evaluating(model), hooks(model, make):
        call_on_copy(model, example)
    return calls
