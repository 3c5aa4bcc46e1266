"""Parts of a network that are run by themselves: the module around a set of channels, and what it is called with."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from sparsefw.compression.artifact.plan import Keep
from sparsefw.compression.structure.channels import Channels
from sparsefw.compression.structure.layers import call_on_copy, cloned, evaluating, hooks

_PLAIN = (Tensor, bool, int, float, str, type(None), torch.dtype)  # what no call can change, once tensors are copied


def module_around(channels: Channels, model: nn.Module) -> str:
    """Return the name of the innermost module that runs all sites of a set; the model's own is empty.

    >>> from sparsefw.compression.structure.channels import Side, Site
    >>> blocks = nn.ModuleList(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)) for _ in range(2))
    >>> sites = [Site(name, Side.OUT, ((0,), (1,))) for name in ("blocks.1.0", "blocks.1.1", "blocks.0.1")]
    >>> model = nn.Module()
    >>> model.blocks = blocks
    >>> module_around(Channels(tuple(sites[:2]), (0, 0)), model), module_around(Channels(tuple(sites), (0, 0)), model)
    ('blocks.1', '')
    """
    paths = [site.layer.split(".")[:-1] for site in channels.sites]
    path = [parts[0] for parts in itertools.takewhile(_are_equal, zip(*paths, strict=False))]
    while path and isinstance(model.get_submodule(".".join(path)), (nn.ModuleList, nn.ModuleDict)):
        path = path[:-1]  # which are never called
    return ".".join(path)


def _are_equal(names: Sequence[str]) -> bool:
    return len(set(names)) == 1


def first_inputs(model: nn.Module, example: Any, names: Collection[str]) -> dict[str, Any]:
    """Return what modules of these names are first called with, without those that are given anything but plain values."""
    inputs: dict[str, Any] = {}

    def make(name: str, module: nn.Module) -> Sequence[Any]:
        def note(_: nn.Module, args: Any, kwargs: Any) -> None:
            if name not in inputs:
                inputs[name] = cloned((args, kwargs))

        return (module.register_forward_pre_hook(note, with_kwargs=True),) if name in names else ()

    if names:
        with evaluating(model), hooks(model, make):
            call_on_copy(model, example)
    return {
        name: given for name, given in inputs.items() if all(isinstance(leaf, _PLAIN) for leaf in tree_leaves(given))
    }


def edits_inside(edits: Iterable[Keep], name: str) -> list[Keep]:
    """Return edits of layers within a module as edits of that module."""
    return [replace(edit, layer=edit.layer.removeprefix(f"{name}.")) for edit in edits]


def places_inside(channels: Channels, name: str, model: nn.Module) -> tuple[object, ...]:
    """Return where a set is in a module: the same for the same layers of two modules of one class."""
    places = ((site.layer.removeprefix(f"{name}."), site.side) for site in channels.sites)
    return type(model.get_submodule(name)), channels.leaves_constant, *places
