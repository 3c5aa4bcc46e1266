"""Direct weights: parameters that code multiplies with by itself, such as those of layers that it does not call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from sparsefw.compression.structure.channels import Side
from sparsefw.compression.structure.layers import AnyConv
from sparsefw.compression.structure.ties import sides_of

PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "matmul", "_grouped_mm")
_UNCHANGED = ("detach", "alias", "_to_copy", "clone", "contiguous", "lift_fresh")


class Weight(NamedTuple):
    """A parameter of matrices, or a view of one.

    site       the name of the layer that holds it, or its own
    sides      which side of the site each axis counts; None: an axis that keeps its length, as that of experts
    is_layers  whether a layer holds it
    """

    site: str
    sides: tuple[Side | None, ...]
    is_layers: bool = False


def weight_of(owner: nn.Module, name: str, parameter: Tensor) -> Weight | None:
    """Return a parameter as a weight; None if it is not that of a layer, no matrix and no stack of matrices.

    Args:
        owner: The module that holds it.
        name: Its full name.
        parameter: Itself.
    """
    layer, _, local = name.rpartition(".")
    if isinstance(owner, (nn.Linear, AnyConv, nn.Embedding)) and local == "weight":
        axes = {axis: side for side, axis in sides_of(owner, local).items()}
        sides = (axes.get(axis) if parameter.ndim == 2 else None for axis in range(parameter.ndim))
        return Weight(layer, tuple(sides), is_layers=True)
    if not isinstance(parameter, nn.Parameter) or parameter.ndim not in (2, 3) or min(parameter.shape) < 2:
        return None
    return Weight(name, (Side.ROWS, Side.EACH) if parameter.ndim == 2 else (None, Side.PLANES, Side.EACH))


def viewed(weight: Weight, operation: str, args: Sequence[Any], out: Any) -> Weight | None:
    """Return what an operation makes of a weight; None if it is no view of it."""
    sides = list(weight.sides)
    if operation in _UNCHANGED:
        return weight
    if operation == "t":
        return weight._replace(sides=tuple(reversed(sides)))
    if operation in ("transpose", "swapaxes"):
        first, second = (int(axis) % len(sides) for axis in args[1:3])
        sides[first], sides[second] = sides[second], sides[first]
        return weight._replace(sides=tuple(sides))
    if operation == "permute":
        return weight._replace(sides=tuple(sides[axis] for axis in args[1]))
    if operation == "select" and sides[int(args[1])] is None:
        del sides[int(args[1])]
        return weight._replace(sides=tuple(sides))
    same = isinstance(out, Tensor) and out.shape == args[0].shape
    return weight if same and operation in ("view", "_unsafe_view", "reshape", "expand") else None
