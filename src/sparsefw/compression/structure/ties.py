"""Ties: parameters that several layers share, such as an embedding and the layer that writes the output of a language model.

Channels of a shared parameter go from all of its layers at once: an axis of it has the same labels wherever it is seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from torch import nn

from sparsefw.compression.structure.channels import Side, is_depthwise
from sparsefw.compression.structure.layers import AnyConv, axis_of_channels, groups_of, replace_parameter
from sparsefw.layer_types import TRANSPOSED


class Axis(NamedTuple):
    """An axis of a shared parameter, which is known by the first of its names."""

    parameter: str
    axis: int


def tied_names(model: nn.Module) -> list[list[str]]:
    """Return the names of every parameter that several modules hold, in the order of the modules."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        names.setdefault(p, []).append(name)
    return [of_one for of_one in names.values() if len({model.get_submodule(n.rpartition(".")[0]) for n in of_one}) > 1]


@contextmanager
def kept_tied(model: nn.Module) -> Iterator[None]:
    """Tie parameters again whose layers have lost the same channels in the block, each for itself."""
    ties = tied_names(model)
    yield
    known = dict(model.named_parameters(remove_duplicate=False))
    for names in ties:
        first = known.get(names[0])
        for name in names[1:]:
            other = known.get(name)
            if first is not None and other is not None and other is not first and other.shape == first.shape:
                replace_parameter(model, name, first)


def sides_of(module: nn.Module, local: str) -> dict[Side, int]:
    """Map the sides of a layer to the axis of its parameter that they count; empty where no side is a whole axis."""
    if isinstance(module, nn.Embedding):
        return {Side.EACH: 1}
    if is_depthwise(module):
        return {Side.EACH: 0}
    if isinstance(module, (AnyConv, nn.Linear)):
        if local == "bias":
            return {Side.OUT: 0}
        outputs = int(isinstance(module, TRANSPOSED))
        return {Side.OUT: outputs, Side.IN: 1 - outputs} if groups_of(module) == 1 else {}
    parameter = module.get_parameter(local)
    axis = axis_of_channels(parameter)
    return {} if axis is None else {Side.EACH: axis}


def shared_axes(model: nn.Module) -> dict[Axis, list[tuple[str, Side]]]:
    """Map the axes of shared parameters to the sides of layers that count them."""
    axes: dict[Axis, list[tuple[str, Side]]] = {}
    for names in tied_names(model):
        for name in names:
            owner, _, local = name.rpartition(".")
            module = model.get_submodule(owner)
            is_bare = not isinstance(module, (nn.Embedding, AnyConv, nn.Linear)) and local not in ("weight", "bias")
            for side, axis in sides_of(module, local).items():
                axes.setdefault(Axis(names[0], axis), []).append((name if is_bare else owner, side))
    return axes
