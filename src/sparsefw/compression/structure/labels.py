"""Labels: every entry of an activation carries the label of the channel that it came from.

The model runs once on an example. A layer that writes channels gives its output fresh labels, one per channel. Labels then
follow the data: reshaping, slicing, permuting or concatenating a tensor does the same to its labels; adding or multiplying
two tensors makes the labels that meet equal (union-find); a layer that reads a tensor records which label arrives at which
of its inputs. In the end a label stands for everything that must be removed together.

Heads of attention are found in the same way. Queries, keys and values are laid out on a grid of heads and channels; the product
of queries and keys mixes the channels of a head and nothing else, so it makes their labels equal: a label of each head is left.

Nothing is guessed. Labels are *fixed*, with a reason, where an operation mixes all channels (a mean over them), where a constant
or the model's output depends on their number, and where an operation has no rule (operations.py). What code relies on beyond
that is noted while it runs and judged when all labels are known: grids, parts taken by position, and numbers in modules.

Labels are compact: an axis along which all labels are equal has length 1. The labels of a feature map are (1, C, 1, 1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from sparsefw.compression.reasons import Cause, Reason, because
from sparsefw.compression.structure.direct_weights import PRODUCTS, Weight, viewed

if TYPE_CHECKING:
    from sparsefw.compression.structure.operations import Rule
    from sparsefw.compression.structure.parameters import Parameters

Array = npt.NDArray[np.int64]

NEUTRAL = 0  # the label of entries that belong to no channel, whatever their number, such as a sum over all channels


class Labels:
    """Union-find over labels 1, 2, ...; a class of equal labels is fixed by the first reason that is given for one of them.

    The label NEUTRAL is equal to no other, and never fixed.
    """

    def __init__(self) -> None:
        self._parent: list[int] = [NEUTRAL]
        self._reason: dict[int, Reason] = {}

    def fresh(self, count: int) -> Array:
        """Return new labels, each in a class of its own."""
        start = len(self._parent)
        self._parent.extend(range(start, start + count))
        return np.arange(start, start + count)

    def find(self, label: int) -> int:
        """Return the representative of the label's class."""
        while self._parent[label] != label:
            self._parent[label] = self._parent[self._parent[label]]
            label = self._parent[label]
        return label

    def classes(self, labels: Array) -> Array:
        """Return the representatives of the classes of these labels, in the same places."""
        distinct, places = np.unique(labels, return_inverse=True)
        return np.array([self.find(int(label)) for label in distinct], dtype=np.int64)[places.reshape(labels.shape)]

    def unite(self, a: Array, b: Array) -> None:
        """Make labels at the same place equal, after broadcasting."""
        if a.shape == b.shape and np.array_equal(a, b):
            return
        first_side, second_side = (side.ravel() for side in np.broadcast_arrays(a, b))
        pairs = np.unique(first_side * len(self._parent) + second_side)
        for pair in pairs.tolist():
            first, second = (self.find(label) for label in divmod(pair, len(self._parent)))
            if first != second and NEUTRAL not in (first, second):
                self._parent[second] = first
                if second in self._reason:
                    self._reason.setdefault(first, self._reason[second])

    def sizes(self) -> dict[int, int]:
        """Return how many labels each class has, by its representative."""
        sizes: dict[int, int] = {}
        for label in range(len(self._parent)):
            representative = self.find(label)
            sizes[representative] = sizes.get(representative, 0) + 1
        return sizes

    def fix(self, labels: Array, reason: Reason) -> None:
        """Keep these labels, and all that are equal to them, from being removed."""
        for label in np.unique(labels[labels != NEUTRAL]):
            self._reason.setdefault(self.find(int(label)), reason)

    def reason(self, label: int) -> Reason | None:
        """Return why this label cannot be removed; None if it can."""
        return self._reason.get(self.find(label))


def compact(labels: Array) -> Array:
    """Return the labels with length 1 along every axis on which they are equal."""
    for axis in range(labels.ndim):
        if labels.shape[axis] > 1:
            first = labels.take([0], axis=axis)
            labels = first if bool((labels == first).all()) else labels
    return labels


def is_neutral(labels: Array | None) -> bool:
    return labels is not None and not labels.any()


def varying(labels: Array) -> list[int]:
    """Return the axes along which compact labels differ."""
    return [axis for axis, length in enumerate(labels.shape) if length > 1]


class Grid(NamedTuple):
    """Labels along several axes of a tensor. In the end they may differ along one axis only, and not along a pinned one.

    Channels that are removed are then whole slices of the grid: a grid with holes is not a tensor.
    """

    labels: Array
    pinned: frozenset[int]


class Parts(NamedTuple):
    """Labels of an axis that is taken apart by position, and the part of each. All parts must lose the same number.

    reason   why the channels stay if that cannot be
    """

    labels: Array
    part: Array
    reason: Reason


class Mixture(NamedTuple):
    """A label of a mean over channels and the like: if anything uses it, the channels stay, for this reason."""

    label: int
    channels: Array
    reason: Reason


class Number(NamedTuple):
    """An integer in a module by which its code lays out a tensor: the length of this axis of a grid, or of a range of it.

    labels   of the tensor
    axis     the axis of the labels that it counts
    """

    module: str
    attribute: str
    labels: Array
    axis: int


class Tracer(TorchDispatchMode):
    """Follows labels through every tensor operation outside of the layers that have their own rule (trace.py)."""

    def __init__(self, labels: Labels, parameters: Parameters, rules: Mapping[str, Rule], unknown: Rule) -> None:
        super().__init__()
        self.labels = labels
        self.inside_layers = 0  # above 0 while a layer with its own rule runs
        self.grids: list[Grid] = []
        self.parts: list[Parts] = []
        self.mixtures: list[Mixture] = []
        self.numbers: list[Number] = []
        self.heads: list[Array] = []  # labels along the axis of heads of a product of activations
        self.numbers_of_code: Callable[[int, bool | None], list[tuple[str, str]]] = lambda value, last: []
        self.weight_of: Callable[[Tensor], Weight | None] = lambda tensor: None  # of a parameter
        self._of: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        self._weights: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # views of parameters
        self.parameters = parameters
        self._rules = rules
        self._unknown = unknown

    def of(self, tensor: Tensor) -> Array | None:
        """Return the labels of a tensor; None for inputs and constants, which have none."""
        if tensor not in self._of:
            labels = self.parameters.labels_of(tensor)
            if labels is not None:
                self._of[tensor] = labels
        return self._of.get(tensor)

    def set(self, tensor: Tensor, labels: Array) -> None:
        if not labels.size:
            return
        if len(varying(labels)) > 1:
            self.grids.append(Grid(labels, frozenset()))
        self._of[tensor] = labels

    def pin(self, labels: Array, axes: Iterable[int]) -> None:
        """Note that code relies on the length of these axes of a grid."""
        self.grids.append(Grid(labels, frozenset(axes)))

    def tie(self, labels: Array, axes: Iterable[int], reason: Reason) -> Array:
        """Return what becomes of labels if the entries along these axes are mixed.

        If they also differ along another axis, entries that are mixed become one label, such as that of a head. If not, all
        channels are mixed with each other: they are fixed.
        """
        mixed = [axis for axis in axes if labels.shape[axis] > 1]
        if not mixed:
            return labels
        if len(varying(labels)) == len(mixed):
            self.labels.fix(labels, reason)
            return labels
        first = labels
        for axis in mixed:
            first = first.take([0], axis=axis)
        self.labels.unite(labels, first)
        return first

    def count(self, value: int, labels: Array, axis: int, last: bool | None = None, place: int | None = None) -> bool:
        """Note that the module whose code runs may hold this length of an axis of labels; return whether it does.

        last: whether it is the last axis of the tensor, which a module rather calls a dimension; None: either.
        place: that of the number in a list of numbers; None: any.
        """
        names = self.numbers_of_code(value, last)
        if place is not None:
            names = [name for name in names if name[1].rpartition(".")[2] == str(place) or "." not in name[1]]
        self.numbers += [Number(module, attribute, labels, axis) for module, attribute in names]
        return bool(names)

    def fix(self, tensors: Iterable[Any], reason: Reason) -> None:
        for tensor in tensors:
            labels = self.of(tensor) if isinstance(tensor, Tensor) else None
            if labels is not None:
                self.labels.fix(labels, reason)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not self.inside_layers:
            name = func.overloadpacket.__name__.rstrip("_")  # operations in place have the same rules
            inputs = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
            self._view_weights(name, inputs, args, out)
            if any(self.of(t) is not None for t in inputs):
                try:
                    self._rules.get(name, self._unknown)(self, func, args, kwargs or {}, out)
                except (ValueError, IndexError, TypeError):  # the rule does not fit these arguments: channels stay
                    self._unknown(self, func, args, kwargs or {}, out)
        return out

    def weight(self, tensor: Tensor) -> Weight | None:
        """Return the weight that a tensor is a view of; None if it is none."""
        known: Weight | None = self._weights.get(tensor)
        return self.parameters.weight_of(tensor) if known is None else known

    def _view_weights(self, operation: str, inputs: Sequence[Tensor], args: Any, out: Any) -> None:
        """Follow views of weights; whatever else code does with the weight of a layer keeps the channels of the layer."""
        for tensor in inputs:
            weight = self.weight(tensor)
            view = None if weight is None else viewed(weight, operation, args, out)
            if view is not None:
                self._weights[out] = view
            elif weight is not None and weight.is_layers and operation not in PRODUCTS:
                self.parameters.weight_is_used(weight, operation)

    def mixed(self, labels: Array, reason: Reason) -> Array:
        """Return the label of a mixture of all of these channels, along the axes that labels have."""
        label = self.labels.fresh(1)
        self.mixtures.append(Mixture(int(label[0]), labels, reason))
        return label.reshape((1,) * labels.ndim)

    def judge_mixtures(self, read: Iterable[Array]) -> None:
        """Fix the channels of mixtures that are used: read by a layer, met by other labels, or fixed themselves.

        read: the labels that layers read.
        """
        if not self.mixtures:
            return
        seen = self.labels.sizes()
        is_read = {label for labels in read for label in np.unique(labels).tolist()}
        for label, channels, reason in reversed(self.mixtures):  # one may be part of a later one
            if seen[self.labels.find(label)] > 1 or label in is_read or self.labels.reason(label) is not None:
                self.labels.fix(channels, reason)

    def judge_grids(self) -> None:
        """Make labels of grids equal that would leave holes, and fix those that must keep an axis.

        A grid that differs along several axes, such as groups that are shuffled, loses whole slices: what has the same place
        along one axis goes together, along the one that leaves the most classes.
        """
        for labels, _ in self.grids:
            classes = compact(self.labels.classes(labels))
            axes = varying(classes)
            if len(axes) > 1:
                lines = {axis: _line(classes, axis) for axis in axes}
                most = max(axes, key=lambda axis: len(np.unique(lines[axis])))
                self.labels.unite(classes, lines[most])
        for labels, pinned in self.grids:
            classes = compact(self.labels.classes(labels))
            axes = varying(classes)
            if len(axes) > 1:
                self.labels.fix(labels, because(Cause.TWO_AXES))
            elif pinned.intersection(axes):
                self.labels.fix(labels, because(Cause.TAKEN_APART))


def _line(classes: Array, axis: int) -> Array:
    """Return the classes along an axis, at the first place of every other one."""
    for other in range(classes.ndim):
        classes = classes if other == axis else classes.take([0], axis=other)
    return classes


def slots_of(number: Number, labels: Labels) -> Sequence[int]:
    """Return the class at each position of the axis that the number counts; empty if the classes do not differ there."""
    classes = compact(labels.classes(number.labels))
    if varying(classes) != [number.axis]:
        return ()
    return classes.ravel().tolist()
