"""Pairs of a layer and the batch norm that alone reads its output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sparsefw.compression.structure.layers import call_on_copy, evaluating, first_input, hooks, is_layer
from sparsefw.layer_types import BATCH_NORMS


class _Operations(TorchDispatchMode):
    """Calls a function with the arguments of every operation before it runs."""

    supports_higher_order_operators = True

    def __init__(self, look: Callable[[Any], None]) -> None:
        super().__init__()
        self.look = look

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.look((args, kwargs))
        return func(*args, **(kwargs or {}))


def norms_behind(model: nn.Module, example: Any) -> dict[str, str]:
    """Map layers to the batch norm that reads their output unchanged, where nothing else reads it.

    Only there does the norm cancel an offset of the layer. An activation in place hands the same tensor to the norm, and a
    shortcut may read it too: both are operations on it, and are counted.
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
            key = id(first_input(args, kwargs))
            if key in written:
                behind[key] = name

        if is_layer(module):
            return (module.register_forward_hook(wrote),)
        is_norm = isinstance(module, BATCH_NORMS)
        return (module.register_forward_pre_hook(read, with_kwargs=True),) if is_norm else ()

    def count(tensors: Any) -> None:
        for tensor in tree_leaves(tensors):
            if id(tensor) in written:
                reads[id(tensor)] = reads.get(id(tensor), 0) + 1

    with evaluating(model), hooks(model, watch), _Operations(count):
        count(call_on_copy(model, example))  # the user reads the model's output
    norms_of: dict[str, list[str | None]] = {}  # one entry per call of the layer
    for output, layer in written.items():
        norms_of.setdefault(layer, []).append(behind.get(output) if reads.get(output) == 1 else None)
    return {layer: norms[0] for layer, norms in norms_of.items() if norms[0] is not None and len(set(norms)) == 1}
