"""Labels: every entry of an activation carries the label of the channel that it came from.

The model runs once on an example. A layer that writes channels gives its output fresh labels, one per channel. Labels then
follow the data: reshaping, slicing, permuting or concatenating a tensor does the same to its labels; adding or multiplying
two tensors makes the labels that meet equal (union-find); a layer that reads a tensor records which label arrives at which
of its inputs. In the end a label stands for everything that must be removed together.

Nothing is guessed. Labels are *fixed*, with a reason, where an operation mixes channels (a mean over them, a LayerNorm), where
a constant or the model's output depends on their number, and where an operation has no rule here.

Labels are compact: an axis along which all labels are equal has length 1. The labels of a feature map are (1, C, 1, 1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from sparsefw.compression.reasons import Cause, Reason, because

Array = npt.NDArray[np.int64]


class Labels:
    """Union-find over labels 0, 1, ...; a class of equal labels is fixed by the first reason that is given for one of them."""

    def __init__(self) -> None:
        self._parent: list[int] = []
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

    def unite(self, a: Array, b: Array) -> None:
        """Make labels at the same place equal, after broadcasting."""
        if a.shape == b.shape and np.array_equal(a, b):
            return
        pairs = np.stack([side.ravel() for side in np.broadcast_arrays(a, b)], axis=1)
        for first, second in np.unique(pairs, axis=0):
            first, second = self.find(int(first)), self.find(int(second))
            if first != second:
                self._parent[second] = first
                if second in self._reason:
                    self._reason.setdefault(first, self._reason[second])

    def fix(self, labels: Array, reason: Reason) -> None:
        """Keep these labels, and all that are equal to them, from being removed."""
        for label in np.unique(labels):
            self._reason.setdefault(self.find(int(label)), reason)

    def reason(self, label: int) -> Reason | None:
        """Return why this label cannot be removed; None if it can."""
        return self._reason.get(self.find(label))


def compact(labels: Array) -> Array:
    """Return the labels with length 1 along every axis on which they are equal."""
    for axis in range(labels.ndim):
        first = labels[(slice(None),) * axis + (slice(1),)]
        if labels.shape[axis] > 1 and bool((labels == first).all()):
            labels = first
    return labels


class Tracer(TorchDispatchMode):
    """Follows labels through every tensor operation outside of the layers that have their own rule (channels.py)."""

    def __init__(self, labels: Labels, bare_labels: Callable[[Tensor], Array | None]) -> None:
        super().__init__()
        self.labels = labels
        self.inside_layers = 0  # above 0 while a layer with its own rule runs
        self._of: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        self._bare_labels = bare_labels

    def of(self, tensor: Tensor) -> Array | None:
        """Return the labels of a tensor; None for inputs and constants, which have none."""
        if tensor not in self._of:
            labels = self._bare_labels(tensor)
            if labels is not None:
                self._of[tensor] = labels
        return self._of.get(tensor)

    def set(self, tensor: Tensor, labels: Array) -> None:
        if not labels.size:
            return
        if sum(length > 1 for length in labels.shape) > 1:  # a grid with holes is not a tensor
            self.labels.fix(labels, because(Cause.TWO_AXES))
        self._of[tensor] = labels

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
            if any(self.of(t) is not None for t in inputs):
                RULES.get(name, _unknown)(self, func, args, kwargs or {}, out)
        return out


Rule = Callable[[Tracer, Any, Sequence[Any], dict[str, Any], Any], None]


def _unknown(tracer: Tracer, func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> None:
    operation = func.overloadpacket.__name__
    tracer.fix(tree_leaves((args, kwargs)), because(Cause.UNKNOWN_OPERATION, operation=operation))


def _same(tracer: Tracer, func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> None:
    """Entry by entry: the labels stay. (removal.py checks on the numbers whether a zero stays a zero.)"""
    labels = tracer.of(args[0])
    if labels is not None:
        tracer.set(tree_leaves(out)[0], labels)


def _meet(tracer: Tracer, func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> None:
    """Entries of several tensors meet: their labels become equal, unless one value is spread over the channels of another."""
    tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    shapes = {id(t): (1,) * (out.ndim - t.ndim) + tuple(t.shape) for t in tensors}
    known = [
        (t, labels.reshape((1,) * (out.ndim - labels.ndim) + labels.shape))
        for t in tensors
        if (labels := tracer.of(t)) is not None
    ]
    merged: Array | None = None
    for t, labels in sorted(known, key=lambda pair: (-pair[0].numel(), -pair[1].size)):
        if merged is None:
            merged = labels
        elif merged.size > 1 and _spread(shapes[id(t)], merged):
            tracer.labels.fix(labels, because(Cause.SCALES_MANY))
        else:
            tracer.labels.unite(merged, labels)
            merged = np.broadcast_arrays(merged, labels)[0]
    assert merged is not None
    for t in tensors:
        if tracer.of(t) is None and not _spread(shapes[id(t)], merged):
            tracer.labels.fix(merged, because(Cause.MEETS_FIXED_SIZE))
    tracer.set(out, compact(np.ascontiguousarray(merged)))


def _spread(shape: Sequence[int], labels: Array) -> bool:
    """Return whether a tensor of this shape has length 1 along every axis along which the labels differ."""
    return all(length == 1 for length, different in zip(shape, labels.shape, strict=True) if different > 1)


def _moved(tracer: Tracer, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Array]:
    """Return the labels of the outputs: the operation applied to the labels of its inputs."""

    def full(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(full(v) for v in value)
        if not isinstance(value, Tensor):
            return value
        labels = tracer.of(value)
        if labels is None:
            labels = tracer.labels.fresh(1).reshape((1,) * value.ndim)
            tracer.labels.fix(labels, because(Cause.JOINED_WITH_FIXED_SIZE))
        return torch.from_numpy(np.array(labels, order="C")).expand(value.shape).contiguous()

    moved = func(*full(list(args)), **{name: full(value) for name, value in kwargs.items()})
    if any(not labels.numel() for labels in tree_leaves(moved)):
        tracer.fix(tree_leaves((args, kwargs)), because(Cause.NOTHING_LEFT))
    return [compact(labels.numpy()) for labels in tree_leaves(moved)]


def _move(tracer: Tracer, func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> None:
    """Entries change places: the same operation moves their labels. Labels that meet unlabelled entries are fixed."""
    for result, labels in zip(tree_leaves(out), _moved(tracer, func, args, kwargs), strict=True):
        tracer.set(result, labels)


def _join(tracer: Tracer, func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> None:
    """Tensors side by side. Along an axis other than the channels, such as tokens, channel i of one is channel i of all."""
    (labels,) = _moved(tracer, func, args, kwargs)
    axis = kwargs.get("dim", args[1] if len(args) > 1 else 0)
    if labels.shape[axis] > 1 and labels.size > labels.shape[axis]:
        first = labels.take([0], axis=axis)
        tracer.labels.unite(labels, first)
        labels = first
    tracer.set(out, labels)


def _part(tracer: Tracer, func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> None:
    """Parts of a tensor by position, or the tensor rolled or shuffled: along the channels, this depends on their number."""
    labels = tracer.of(args[0])
    assert labels is not None
    name = func.overloadpacket.__name__
    position = 1 if name in ("slice", "select", "unbind") else 2
    reordered = name.endswith(("roll", "shuffle"))
    axes = kwargs.get("dim", args[position] if len(args) > position else range(labels.ndim) if reordered else 0)
    changed = reordered or any(t.shape != args[0].shape for t in tree_leaves(out))
    if changed and any(labels.shape[axis] > 1 for axis in ([axes] if isinstance(axes, int) else axes)):
        tracer.labels.fix(labels, because(Cause.TAKEN_APART))
    _move(tracer, func, args, kwargs, out)


def _pool(tracer: Tracer, func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> None:
    """Windows over the axes behind the channels, one channel at a time. (Pooling channels_last ends in as_strided.)"""
    labels = tracer.of(args[0])
    first = tree_leaves(out)[0]
    if labels is None or any(length > 1 for length in labels.shape[2:]):
        return _unknown(tracer, func, args, kwargs, out)
    tracer.set(first, labels)


def _regions(tracer: Tracer, func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> None:
    """Regions cut out of feature maps, one channel at a time: (regions, channels, height, width)."""
    tracer.fix(args[1:2], because(Cause.USED_OUTSIDE))
    _pool(tracer, func, args, kwargs, out)


def _put(tracer: Tracer, func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> None:
    """Entries written at places along the first axis: channel i of what is written is channel i of the whole."""
    whole, places, values = tracer.of(args[0]), args[1], tracer.of(args[2])
    along_first = len(places) == 1 and args[2].ndim == args[0].ndim
    if not along_first or values is None or values.shape[0] > 1 or (whole is not None and whole.shape[0] > 1):
        return _unknown(tracer, func, args, kwargs, out)
    if whole is not None:
        tracer.labels.unite(whole, values)
    tracer.set(out, values)


def _pad(tracer: Tracer, func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> None:
    """Padding around the channels leaves them as they are; padded channels have no layer that writes them."""
    labels = tracer.of(args[0])
    assert labels is not None
    amounts = list(args[1])
    for i in range(0, len(amounts), 2):
        axis = labels.ndim - 1 - i // 2
        if labels.shape[axis] > 1 and min(amounts[i : i + 2]) < 0:  # negative padding cuts channels off
            return tracer.labels.fix(labels, because(Cause.TAKEN_APART))
        if labels.shape[axis] > 1 and (amounts[i] or amounts[i + 1]):
            nothing = tracer.labels.fresh(1)
            tracer.labels.fix(nothing, because(Cause.JOINED_WITH_PADDING))
            width = [(0, 0)] * labels.ndim
            width[axis] = (amounts[i], amounts[i + 1])
            labels = np.pad(labels, width, constant_values=nothing[0])
    tracer.set(out, labels)


def _reduce(tracer: Tracer, func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> None:
    """A reduction over axes: channels that are mixed with each other are fixed."""
    labels = tracer.of(args[0])
    result = tree_leaves(out)[0]
    position = 2 if "norm" in func.overloadpacket.__name__ else 1  # the order of a norm comes first
    dims = kwargs.get("dim", args[position] if len(args) > position else None)
    if labels is None:
        return _unknown(tracer, func, args, kwargs, out)
    axes = (
        range(labels.ndim)
        if dims is None or dims == []
        else [d % labels.ndim for d in ([dims] if isinstance(dims, int) else dims)]
    )
    if any(labels.shape[axis] > 1 for axis in axes):
        tracer.labels.fix(labels, _mixed(func))
        return
    kept = labels if result.ndim == labels.ndim else labels.squeeze(tuple(axes))
    tracer.set(result, kept.reshape(kept.shape if kept.ndim == result.ndim else (1,) * result.ndim))


def _mixed(func: Any) -> Reason:
    return because(Cause.MIXED, operation=func.overloadpacket.__name__.strip("_"))


def _along(tracer: Tracer, func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> None:
    """Softmax, cumsum: every output entry depends on several entries along one axis."""
    labels = tracer.of(args[0])
    assert labels is not None
    if labels.shape[args[1] % labels.ndim] > 1:
        tracer.labels.fix(labels, _mixed(func))
    tracer.set(out, labels)


def _product(tracer: Tracer, func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> None:
    """A matrix product of activations: channels that are summed over are fixed; columns of the right factor stay columns."""
    *added, left, right = [t for t in args if isinstance(t, Tensor)]
    tracer.fix(added, because(Cause.USED_OUTSIDE))
    a, b = tracer.of(left), tracer.of(right)
    if a is not None:
        tracer.labels.fix(a, because(Cause.SUMMED_BY_PRODUCT))
    if b is not None:
        if b.ndim >= 2 and b.shape[-2] == 1 and (a is None or a.size == 1) and b.ndim == out.ndim:
            tracer.set(out, b)
        else:
            tracer.labels.fix(b, because(Cause.SUMMED_BY_PRODUCT))


def _attend(tracer: Tracer, func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> None:
    """Channels of queries and keys are summed over; those of values stay, unless they are split into heads."""
    tracer.fix(args[:2], because(Cause.SUMMED_BY_ATTENTION))
    labels = tracer.of(args[2])
    if labels is not None and labels.size == labels.shape[-1]:
        tracer.set(tree_leaves(out)[0], labels)
    else:
        tracer.fix(args[2:3], because(Cause.SPLIT_INTO_HEADS))


_NAMES: dict[Rule, str] = {
    _same: """
        relu hardtanh relu6 silu gelu sigmoid hardsigmoid hardswish tanh leaky_relu elu selu celu softplus mish neg exp sqrt
        rsqrt reciprocal abs clamp clamp_min clamp_max to _to_copy clone detach alias contiguous lift_fresh log log1p erf sin
        cos square sign round floor ceil trunc expm1 tan atan threshold hardshrink softshrink logical_not nan_to_num dropout
        native_dropout
    """,
    _meet: """
        add sub mul div maximum minimum where pow lerp addcmul addcdiv rsub gt ge lt le eq ne masked_fill logical_and
        logical_or
    """,
    _move: """
        view _unsafe_view reshape _reshape_alias permute transpose t expand unsqueeze squeeze repeat flip movedim
        flatten unflatten pixel_shuffle pixel_unshuffle swapaxes
    """,
    _join: "cat stack",
    _part: "slice select split split_with_sizes unbind chunk narrow roll channel_shuffle native_channel_shuffle",
    _pool: """
        max_pool1d max_pool2d max_pool3d max_pool2d_with_indices max_pool3d_with_indices avg_pool1d avg_pool2d avg_pool3d
        adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d
        adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d upsample_nearest1d upsample_nearest2d
        upsample_nearest3d upsample_bilinear2d upsample_bicubic2d upsample_linear1d upsample_trilinear3d
        _upsample_bilinear2d_aa _upsample_bicubic2d_aa reflection_pad1d reflection_pad2d reflection_pad3d
        replication_pad1d replication_pad2d replication_pad3d as_strided
    """,
    _regions: "roi_align roi_pool",
    _put: "index_put",
    _pad: "constant_pad_nd",
    _reduce: "mean sum amax amin max min var std var_mean linalg_vector_norm norm prod logsumexp argmax",
    _along: "_softmax softmax _log_softmax log_softmax cumsum",
    _product: "mm bmm addmm baddbmm matmul",
    _attend: """
        _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention scaled_dot_product_attention
        _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention _scaled_dot_product_attention_math
        _scaled_dot_product_fused_attention_overrideable
    """,
}
RULES: dict[str, Rule] = {name: rule for rule, names in _NAMES.items() for name in names.split()}
