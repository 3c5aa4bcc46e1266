"""Layouts: how the tensors of a block are stored in one tensor.

A block is one feasible point: a single weight, or several coupled weights that share their group axis (row j of the block is
everything that belongs to channel j). A layout maps between the tensors of a block, each in its own shape and memory order, and
the one tensor on which a region acts. Views of that tensor alias the block, so that gradients are added to it without a copy.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from sparsefw.geometry import Ball, Groups
from sparsefw.geometry.precision import working_dtype

Tensors = list[Tensor]


class Packing(enum.Enum):
    """How the tensors of a block are put together."""

    ALONE = "a single tensor, in its own shape"
    COLUMNS = "columns of one matrix, a row per channel"
    FLAT = "end to end in one vector"


class Place(NamedTuple):
    """One tensor's place in a block: columns start..stop, and the axis order in which it is stored there."""

    order: tuple[int, ...]
    shape: tuple[int, ...]  # in that order
    start: int
    stop: int

    def restore_order(self, stored: Tensor) -> Tensor:
        """Return an alias of the stored tensor with its axes in their original order."""
        return stored.permute([self.order.index(d) for d in range(len(self.order))])


@dataclass(frozen=True)
class Layout:
    """The places of a block's tensors in one tensor of `shape`."""

    shape: tuple[int, ...]
    places: tuple[Place, ...]
    packing: Packing

    def views(self, block: Tensor) -> Tensors:
        """Return aliases of `block`, one per tensor, each in its tensor's own shape."""
        return [place.restore_order(self._stored(block, place)) for place in self.places]

    def _stored(self, block: Tensor, place: Place) -> Tensor:
        if self.packing is Packing.ALONE:
            return block
        if self.packing is Packing.FLAT:
            return block[place.start : place.stop].view(place.shape)
        if len(place.shape) > 1:
            return block[:, place.start : place.stop].unflatten(1, place.shape[1:])
        return block[:, place.start]

    def gather(self, tensors: Sequence[Tensor], into: Tensor) -> Tensor:
        """Copy the tensors of a block to their places in `into`, a tensor of the layout's shape, and return it."""
        for view, tensor in zip(self.views(into), tensors, strict=True):
            view.copy_(tensor)
        return into

    def gathered(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return the tensors of a block, copied into one tensor of the layout's shape and of the dtype of computations."""
        dtype = working_dtype(tensors[0].dtype)
        return self.gather(tensors, into=tensors[0].new_empty(self.shape, dtype=dtype))

    def rows(self, tensors: Sequence[Tensor]) -> Tensors:
        """Return aliases of the tensors as matrices whose rows are the groups; RuntimeError where memory does not allow it."""
        return [
            tensor.permute(place.order).view(place.shape[0], -1)
            for tensor, place in zip(tensors, self.places, strict=True)
        ]

    def has_rows(self, tensors: Sequence[Tensor]) -> bool:
        """Whether the tensors can be aliased as matrices of rows."""
        try:
            self.rows(tensors)
        except RuntimeError:
            return False
        return True

    def rows_of_block(self, block: Tensor) -> Tensors:
        """Return the same matrices for a block that is stored in this layout."""
        matrix = block.view(block.shape[0], -1)
        return [matrix[:, place.start : place.stop] for place in self.places]


def layout_of(region: Ball, tensors: Sequence[Tensor], axes: Sequence[int]) -> Layout:
    """Return the layout of one block.

    Args:
        region: the region that acts on the block.
        tensors: its tensors.
        axes: the group axis of each of them.

    Raises:
        ValueError: coupled tensors do not have the same length along their group axes.
    """
    if len(tensors) == 1 and axes[0] == 0:
        return _layout_alone(region, tensors[0])
    if isinstance(region.view, Groups) and region.view.partition is not None:
        return _layout_end_to_end(tensors)
    if not region.view.any_column_order:
        raise ValueError(f"a coupled block is a matrix with a row per channel, but {region} looks along another axis")
    return _layout_in_columns(tensors, axes)


def _layout_alone(region: Ball, tensor: Tensor) -> Layout:
    by_memory = region.view.any_column_order and tensor.ndim > 1
    order = _memory_order(tensor, first=0) if by_memory else tuple(range(tensor.ndim))
    shape = tuple(tensor.shape[d] for d in order)
    columns = tensor.numel() // max(shape[0], 1) if shape else 1
    return Layout(shape, (Place(order, shape, 0, columns),), Packing.ALONE)


def _layout_end_to_end(tensors: Sequence[Tensor]) -> Layout:
    places = []
    start = 0
    for tensor in tensors:
        stop = start + tensor.numel()
        places.append(Place(tuple(range(tensor.ndim)), tuple(tensor.shape), start, stop))
        start = stop
    return Layout((start,), tuple(places), Packing.FLAT)


def _layout_in_columns(tensors: Sequence[Tensor], axes: Sequence[int]) -> Layout:
    counts = {tensor.shape[axis] for tensor, axis in zip(tensors, axes, strict=True)}
    if len(counts) != 1:
        shapes = ", ".join(str(tuple(t.shape)) for t in tensors)
        raise ValueError(
            f"coupled tensors must have the same length along their group axis, got shapes {shapes} and axes {list(axes)}"
        )
    places = []
    start = 0
    for tensor, axis in zip(tensors, axes, strict=True):
        order = _memory_order(tensor, first=axis)
        stop = start + tensor.numel() // tensor.shape[axis]
        places.append(Place(order, tuple(tensor.shape[d] for d in order), start, stop))
        start = stop
    return Layout((counts.pop(), start), tuple(places), Packing.COLUMNS)


def _memory_order(tensor: Tensor, first: int) -> tuple[int, ...]:
    """Return the axes from slow to fast in memory, with `first` in front: channels_last weights keep their own order."""
    others = [d for d in range(tensor.ndim) if d != first]
    return (first, *sorted(others, key=tensor.stride, reverse=True))
