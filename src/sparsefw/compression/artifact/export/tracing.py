"""How a network is traced for a file: on the CPU, with a free batch size, without the noise; and which layer uses an operator."""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import logging
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from sparsefw.compression.structure.layers import arguments_of


def traced_arguments(model: nn.Module, example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional or keyword arguments; of both, all become keyword arguments."""
    positional, by_name = arguments_of(example)
    if not by_name:
        return positional, {}
    names = list(inspect.signature(model.forward).parameters)
    return (), {**dict(zip(names, positional, strict=False)), **by_name}


def free_batch(args: tuple[Any, ...], kwargs: dict[str, Any], axis: Any = torch.export.Dim.DYNAMIC) -> Any:
    """Return the dynamic shapes of the arguments: their first axis is the batch."""

    def free(value: Any) -> Any:
        return {0: axis} if isinstance(value, Tensor) and value.ndim else None

    return tree_map(free, kwargs) if kwargs else tuple(tree_map(free, args))


def at_least_two(example: Any) -> Any:
    """Return the example with a batch of at least 2: a batch of 1 would be traced as a constant."""
    return tree_map(lambda t: torch.cat([t, t]) if isinstance(t, Tensor) and t.ndim and len(t) == 1 else t, example)


def on_cpu(example: Any) -> Any:
    return tree_map(lambda t: t.detach().cpu() if isinstance(t, Tensor) else t, example)


def model_on_cpu(model: nn.Module) -> nn.Module:
    is_on_cpu = all(t.device.type == "cpu" for t in (*model.parameters(), *model.buffers()))
    return model if is_on_cpu else copy.deepcopy(model).cpu()


def users_of(operator: str, nodes: Iterable[torch.fx.Node]) -> list[str]:
    """Return the names of the layers whose code calls an operator, such as "aten.digamma", in the order of their calls."""
    wanted = operator.replace("::", ".")
    layers = []
    for node in nodes:
        target = str(node.target)
        if node.op == "call_function" and (target == wanted or target.startswith(f"{wanted}.")):
            layers.append(layer_of(node))
    return list(dict.fromkeys(layers))


def layer_of(node: torch.fx.Node) -> str:
    """Return the name of the innermost layer whose code made a node; "the network itself" outside of layers."""
    stack = node.meta.get("nn_module_stack") or {}
    names = [name for name, _ in stack.values()]
    innermost = str(names[-1]) if names else ""
    return innermost.removeprefix("L['self']").removeprefix(".") or "the network itself"


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the exporters, which print, log and warn about their internals."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    unheard = io.StringIO()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(unheard), contextlib.redirect_stderr(unheard):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
