"""Operations: what every tensor operation does to labels, a rule for each. An operation without a rule fixes what it reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from sparsefw.compression.reasons import Cause, Reason, because
from sparsefw.compression.structure.labels import NEUTRAL, Array, Parts, Tracer, compact, is_neutral, varying
from sparsefw.compression.structure.products import attend, grouped_product, product

Rule = Callable[[Tracer, Any, Sequence[Any], dict[str, Any], Any], None]


def unknown(tracer: Tracer, func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> None:
    operation = func.overloadpacket.__name__
    tracer.fix(tree_leaves((args, kwargs)), because(Cause.UNKNOWN_OPERATION, operation=operation))


def _same(tracer: Tracer, func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> None:
    """Entry by entry: the labels stay. (removal.py checks on the numbers whether a zero stays a zero.)"""
    labels = tracer.of(args[0])
    if labels is not None:
        tracer.set(tree_leaves(out)[0], labels)


def _meet(tracer: Tracer, func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> None:
    """Entries of several tensors meet: their labels become equal, unless one value is spread over the channels of another.

    A tensor that differs along some axes of a grid only, such as positions that all heads share, keeps the length of these.
    """
    tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    shapes = {id(t): (1,) * (out.ndim - t.ndim) + tuple(t.shape) for t in tensors}
    known = [
        (t, labels.reshape((1,) * (out.ndim - labels.ndim) + labels.shape))
        for t in tensors
        if (labels := tracer.of(t)) is not None and not is_neutral(labels)
    ]
    merged: Array | None = None
    shape: Sequence[int] = ()  # of the tensor whose labels are the merged ones
    for t, labels in sorted(known, key=lambda pair: (-pair[0].numel(), -pair[1].size)):
        if merged is not None and merged.size == 1 and labels.size > 1 and _spread(shape, labels):
            tracer.labels.fix(merged, because(Cause.SCALES_MANY))
            merged = None
        if merged is None:
            merged = labels
            shape = shapes[id(t)]
        elif merged.size > 1 and _spread(shapes[id(t)], merged):
            tracer.labels.fix(labels, because(Cause.SCALES_MANY))
        elif varying(labels) and labels.size > 1 and _is_shared(shapes[id(t)], merged):
            tracer.pin(merged, varying(labels))
            tracer.labels.fix(labels, because(Cause.USED_BY_MANY))
        else:
            tracer.labels.unite(merged, labels)
            merged = np.broadcast_arrays(merged, labels)[0]
    if merged is None:
        return tracer.set(out, np.full((1,) * out.ndim, NEUTRAL))
    for t in tensors:
        if tracer.of(t) is None and not _spread(shapes[id(t)], merged):
            _meet_constant(tracer, t, shapes[id(t)], merged)
    if len(varying(merged)) > 1:  # entries of a table have become channels
        merged = tracer.labels.classes(merged)
    tracer.set(out, compact(np.array(merged, order="C")))


def _meet_constant(tracer: Tracer, constant: Tensor, shape: Sequence[int], labels: Array) -> None:
    """Labels meet a tensor that depends on their number, or on that of an axis: fixed, unless the module holds the number."""
    axes = [axis for axis in varying(labels) if shape[axis] > 1]
    if len(axes) < len(varying(labels)):
        return tracer.pin(labels, axes)
    counted = [tracer.count(labels.shape[axis], labels, axis) for axis in axes]
    if not all(counted):
        tracer.labels.fix(labels, because(Cause.MEETS_FIXED_SIZE, tensor=tracer.parameters.name_of(constant)))


def _spread(shape: Sequence[int], labels: Array) -> bool:
    """Return whether a tensor of this shape has length 1 along every axis along which the labels differ."""
    return all(length == 1 for length, different in zip(shape, labels.shape, strict=True) if different > 1)


def _is_shared(shape: Sequence[int], labels: Array) -> bool:
    """Return whether a tensor of this shape has length 1 along some of the axes along which the labels differ."""
    return any(length == 1 for length, different in zip(shape, labels.shape, strict=True) if different > 1)


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


def _lay_out(tracer: Tracer, func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> None:
    """A shape with other axes: their lengths may be numbers of the module, such as that of its heads."""
    (labels,) = _moved(tracer, func, args, kwargs)
    for axis in varying(labels):
        # Images times heads are no number of a module.
        is_of_batch = axis == 0 and len(np.unique(labels.reshape(len(labels), -1), axis=0)) < len(labels)
        if not is_of_batch:
            tracer.count(out.shape[axis], labels, axis, last=axis == out.ndim - 1)
    tracer.set(out, labels)


def _like(tracer: Tracer, func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> None:
    """A constant of the shape of another tensor, however many channels that has."""
    tracer.set(out, np.full((1,) * out.ndim, NEUTRAL))


def _constant(tracer: Tracer, func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> None:
    """A tensor of a shape of its own, which has no labels: what meets it shows whether that depends on channels."""


def _indexed(tracer: Tracer, func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> None:
    """Entries chosen by position, such as biases of attention from a table: the axes of choice keep their length."""
    labels = tracer.of(args[0])
    if labels is None:
        return unknown(tracer, func, args, kwargs, out)
    if func.overloadpacket.__name__ == "index_select":
        chosen = [args[1] % labels.ndim]
    else:
        masks = any(index is not None and index.dtype == torch.bool for index in args[1])
        chosen = list(range(labels.ndim)) if masks else [i for i, index in enumerate(args[1]) if index is not None]
    if not _keep_length(tracer, labels, chosen):
        return
    whole = torch.from_numpy(np.array(labels, order="C")).expand(args[0].shape)
    tracer.set(out, compact(func(whole, *args[1:], **kwargs).numpy()))


def _keep_length(tracer: Tracer, labels: Array, axes: Sequence[int]) -> bool:
    """Keep the length of these axes: pin them where labels differ along another axis as well, else fix all labels."""
    axes = [axis for axis in axes if labels.shape[axis] > 1]
    if axes and len(varying(labels)) == len(axes):
        tracer.labels.fix(labels, because(Cause.TAKEN_APART))
        return False
    if axes:
        tracer.pin(labels, axes)
    return True


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
    """Parts of a tensor by position. Along the channels, all parts lose the same number, or the module holds their sizes."""
    labels = tracer.of(args[0])
    assert labels is not None
    name = func.overloadpacket.__name__
    position = 1 if name in ("slice", "select", "unbind") else 2
    axis = int(kwargs.get("dim", args[position] if len(args) > position else 0)) % labels.ndim
    if labels.shape[axis] > 1 and any(t.shape != args[0].shape for t in tree_leaves(out)):
        bounds = _bounds(name, args, kwargs, labels.shape[axis])
        if name == "select" and varying(labels) == [axis]:  # code may look at one channel for its shape only
            one = tracer.mixed(labels, because(Cause.TAKEN_APART))
            return tracer.set(out, one.reshape((1,) * out.ndim))
        if name in ("select", "unbind") or len(varying(labels)) > 1:
            _keep_length(tracer, labels, [axis])
        elif bounds is None:
            tracer.labels.fix(labels, because(Cause.TAKEN_APART))
        else:
            _take_apart(tracer, labels, axis, bounds)
    _move(tracer, func, args, kwargs, out)


def _bounds(name: str, args: Sequence[Any], kwargs: dict[str, Any], length: int) -> list[int] | None:
    """Return the positions at which an axis is cut, from 0 to its length; None for every other entry and the like."""
    if name == "split":
        return [*range(0, length, int(args[1])), length]
    if name == "split_with_sizes":
        return [0, *np.cumsum(args[1]).tolist()]
    if name == "narrow":
        start = int(args[2]) % length
        return sorted({0, start, start + int(args[3]), length})
    if name != "slice" or (args[4] if len(args) > 4 else kwargs.get("step", 1)) != 1:
        return None
    start, end = (args[i] if len(args) > i and args[i] is not None else default for i, default in ((2, 0), (3, length)))
    start, end = (min(max(bound + length if bound < 0 else bound, 0), length) for bound in (start, end))
    return sorted({0, start, end, length})


def _take_apart(tracer: Tracer, labels: Array, axis: int, bounds: Sequence[int]) -> None:
    """Note the parts between these bounds: equal ones stay equal; the module must hold the sizes of others."""
    sizes = np.diff(bounds).tolist()
    ranges = list(pairwise(bounds))
    known = [
        tracer.count(end - start, labels.take(range(start, end), axis=axis), axis, place=i)
        for i, (start, end) in enumerate(ranges)
    ]
    known += [tracer.count(end, labels.take(range(end), axis=axis), axis) for end in bounds[2:-1]]
    if len(set(sizes)) == 1:
        if not any(known):  # code may divide the whole by the number of parts
            tracer.count(bounds[-1], labels, axis)
        part = np.repeat(np.arange(len(sizes)), sizes)
        tracer.parts.append(Parts(labels.ravel(), part, because(Cause.UNEQUAL_PARTS)))
    elif sum(known) < len(sizes) - 1:
        tracer.labels.fix(labels, because(Cause.TAKEN_APART))


def _reorder(tracer: Tracer, func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> None:
    """A tensor rolled or shuffled: along the channels, this depends on their number."""
    labels = tracer.of(args[0])
    assert labels is not None
    is_roll = func.overloadpacket.__name__.endswith("roll")
    if not is_roll and varying(labels) == [1]:  # what has the same place in every group goes together
        by_group = labels.reshape(args[1], -1)
        tracer.labels.unite(by_group, by_group[:1])
        return _move(tracer, func, args, kwargs, out)
    axes = kwargs.get("dims", args[2] if is_roll and len(args) > 2 else ())
    axes = [axes] if isinstance(axes, int) else list(axes)
    if any(labels.shape[axis] > 1 for axis in axes or range(labels.ndim)):
        tracer.labels.fix(labels, because(Cause.TAKEN_APART))
    _move(tracer, func, args, kwargs, out)


def _pool(tracer: Tracer, func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> None:
    """Windows over the axes behind the channels, one channel at a time. (Pooling channels_last ends in as_strided.)

    Entries that differ along these axes too, as of a table of biases that is resized, are mixed channel by channel.
    """
    labels = tracer.of(args[0])
    first = tree_leaves(out)[0]
    if labels is None or (varying(labels) and min(varying(labels)) > 1):
        return unknown(tracer, func, args, kwargs, out)
    operation = func.overloadpacket.__name__
    tied = tracer.tie(labels, range(2, labels.ndim), because(Cause.UNKNOWN_OPERATION, operation=operation))
    tracer.set(first, tied)


def _regions(tracer: Tracer, func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> None:
    """Regions cut out of feature maps, one channel at a time: (regions, channels, height, width)."""
    tracer.fix(args[1:2], because(Cause.USED_OUTSIDE))
    _pool(tracer, func, args, kwargs, out)


def _put(tracer: Tracer, func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> None:
    """Entries written at places along the first axis: channel i of what is written is channel i of the whole."""
    whole, places, values = tracer.of(args[0]), args[1], tracer.of(args[2])
    along_first = len(places) == 1 and args[2].ndim == args[0].ndim
    if not along_first or values is None or values.shape[0] > 1 or (whole is not None and whole.shape[0] > 1):
        return unknown(tracer, func, args, kwargs, out)
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
            width = [(0, 0)] * labels.ndim
            width[axis] = (amounts[i], amounts[i + 1])
            labels = _padded(tracer, labels, axis, width)
    tracer.set(out, labels)


def _padded(tracer: Tracer, labels: Array, axis: int, width: Sequence[tuple[int, int]]) -> Array:
    """Return labels with padding along an axis, which keeps its length: in a grid, that of a head is part of the head."""
    if len(varying(labels)) > 1:
        tracer.pin(labels, [axis])
        return np.pad(labels, width, mode="edge")
    nothing = tracer.labels.fresh(1)
    tracer.labels.fix(nothing, because(Cause.JOINED_WITH_PADDING))
    return np.pad(labels, width, constant_values=nothing[0])


def _reduce(tracer: Tracer, func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> None:
    """A reduction over axes: channels that are mixed with each other are fixed."""
    labels = tracer.of(args[0])
    result = tree_leaves(out)[0]
    position = 2 if "norm" in func.overloadpacket.__name__ else 1  # the order of a norm comes first
    dims = kwargs.get("dim", args[position] if len(args) > position else None)
    if labels is None:
        return unknown(tracer, func, args, kwargs, out)
    axes = (
        range(labels.ndim)
        if dims is None or dims == []
        else [d % labels.ndim for d in ([dims] if isinstance(dims, int) else dims)]
    )
    if all(labels.shape[axis] == 1 for axis in varying(labels) if axis not in axes) and any(
        labels.shape[axis] > 1 for axis in axes
    ):
        # A silent channel adds nothing to a sum.
        labels = np.full((1,) * labels.ndim, NEUTRAL) if _adds(func, args) else tracer.mixed(labels, _mixed(func))
    labels = tracer.tie(labels, axes, _mixed(func))
    kept = labels if result.ndim == labels.ndim else labels.squeeze(tuple(axes))
    tracer.set(result, kept.reshape(kept.shape if kept.ndim == result.ndim else (1,) * result.ndim))


def _adds(func: Any, args: Sequence[Any]) -> bool:
    """Return whether silent channels make no difference to a reduction over channels: a sum, or a norm."""
    name = func.overloadpacket.__name__
    return name == "sum" or (name in ("linalg_vector_norm", "norm") and (len(args) < 2 or args[1] in (1, 2, None)))


def _mixed(func: Any) -> Reason:
    return because(Cause.MIXED, operation=func.overloadpacket.__name__.strip("_"))


def _along(tracer: Tracer, func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> None:
    """Softmax, cumsum: every output entry depends on several entries along one axis."""
    labels = tracer.of(args[0])
    assert labels is not None
    tracer.set(out, tracer.tie(labels, [args[1] % labels.ndim], _mixed(func)))


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
    _lay_out: "view _unsafe_view reshape _reshape_alias expand flatten unflatten",
    _move: "permute transpose t unsqueeze squeeze repeat flip movedim pixel_shuffle pixel_unshuffle swapaxes",
    _like: "zeros_like ones_like full_like empty_like",
    _constant: "new_zeros new_ones new_empty new_full new_empty_strided",
    _join: "cat stack",
    _part: "slice select split split_with_sizes unbind narrow",
    _indexed: "index index_select",
    _reorder: "roll channel_shuffle native_channel_shuffle",
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
    _along: "_softmax softmax _safe_softmax _log_softmax log_softmax cumsum",
    product: "mm bmm addmm baddbmm matmul",
    grouped_product: "_grouped_mm",
    attend: """
        _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention scaled_dot_product_attention
        _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention _scaled_dot_product_attention_math
        _scaled_dot_product_fused_attention_overrideable
    """,
}
RULES: dict[str, Rule] = {name: rule for rule, names in _NAMES.items() for name in names.split()}
