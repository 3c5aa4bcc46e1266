"""Wiring: which batch norm reads a layer's output, directly and alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sparsefw.compression.structure.layers import call, evaluating, first_input, hooks, is_layer
from sparsefw.layer_types import BATCH_NORMS


class _Operations(TorchDispatchMode):
    """Shows every operation's arguments before it runs."""

    supports_higher_order_operators = True

    def __init__(self, look: Callable[[Any], None]) -> None:
        super().__init__()
        self.look = look

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.look((args, kwargs))
        return func(*args, **(kwargs or {}))


def norms_behind(model: nn.Module, example: Any) -> dict[str, str]:
    """Layers -> the batch norm that reads their output as it is, where nothing else reads it.

    Only there is an offset of the layer lost in the norm. An activation in place gives the norm the same tensor, and a
    shortcut may read it too: both are operations on it, so they are counted.
    """
    written: dict[int, str] = {}  # id of an output -> its layer
    reads: dict[int, int] = {}
    behind: dict[int, str] = {}  # id of an output -> the norm that reads it
    alive: list[Any] = []  # ids are only unique among living tensors

    def watch(name: str, module: nn.Module) -> Sequence[Any]:
        def wrote(_: Any, __: Any, output: Any) -> None:
            alive.append(output)
            written[id(output)] = name

        def read(_: Any, args: Any, kwargs: Any) -> None:
            if id(first_input(args, kwargs)) in written:
                behind[id(first_input(args, kwargs))] = name

        if is_layer(module):
            return (module.register_forward_hook(wrote),)
        is_norm = isinstance(module, BATCH_NORMS)
        return (module.register_forward_pre_hook(read, with_kwargs=True),) if is_norm else ()

    def count(tensors: Any) -> None:
        for tensor in tree_leaves(tensors):
            if id(tensor) in written:
                reads[id(tensor)] = reads.get(id(tensor), 0) + 1

    with evaluating(model), hooks(model, watch), _Operations(count):
        count(call(model, example))  # what the model returns is read by its user
    alone: dict[str, list[str | None]] = {}
    for output, layer in written.items():
        alone.setdefault(layer, []).append(behind.get(output) if reads.get(output) == 1 else None)
    return {layer: norms[0] for layer, norms in alone.items() if norms[0] is not None and len(set(norms)) == 1}
