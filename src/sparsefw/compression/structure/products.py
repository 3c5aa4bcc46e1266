"""Products of activations: what they do to labels. Here heads of attention become labels of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils._pytree import tree_leaves

from sparsefw.compression.reasons import Cause, because
from sparsefw.compression.structure.direct_weights import Weight
from sparsefw.compression.structure.labels import NEUTRAL, Array, Tracer, is_neutral, varying


def product(tracer: Tracer, func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> None:
    """A matrix product of activations. In a batch of products, such as those of heads, each makes a label of its own.

    Otherwise channels that are summed over meet their partners, and columns of the right factor stay columns.
    """
    *added, left, right = [t for t in args if isinstance(t, Tensor)]
    weight = tracer.weight(right)
    if weight is not None:
        return _layer(tracer, weight, added, left, out)
    factors = [(t, tracer.of(t)) for t in (left, right)]
    if out.ndim == 3 and any(labels is not None and labels.shape[0] > 1 for _, labels in factors):
        tracer.set(out, _of_batches(tracer, [*((t, tracer.of(t)) for t in added), *factors], 0))
        return
    tracer.fix(added, because(Cause.USED_OUTSIDE))
    (_, a), (_, b) = factors
    if a is not None and b is not None and varying(a) == [a.ndim - 1] and varying(b) == [b.ndim - 2]:
        tracer.labels.unite(a.ravel(), b.ravel())  # what one of them silences, the product does not see
        return tracer.set(out, np.full((1,) * out.ndim, NEUTRAL))
    if a is not None:
        tracer.labels.fix(a, because(Cause.SUMMED_BY_PRODUCT))
    if b is not None:
        if b.ndim >= 2 and b.shape[-2] == 1 and b.ndim == out.ndim:
            tracer.set(out, b)
        else:
            tracer.labels.fix(b, because(Cause.SUMMED_BY_PRODUCT))


def grouped_product(tracer: Tracer, func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> None:
    """Rows, each multiplied by the matrix of its expert: a layer, if the matrices are a parameter."""
    weight = tracer.weight(args[1])
    if weight is None or weight.sides[0] is not None:
        return tracer.fix(args[:2], because(Cause.SUMMED_BY_PRODUCT))
    _layer(tracer, weight, (), args[0], out)


def _layer(tracer: Tracer, weight: Weight, added: Sequence[Tensor], left: Tensor, out: Tensor) -> None:
    """A product with a parameter is a layer: it reads the last axis and writes channels of its own, as wide as what is added."""
    read = tracer.of(left)
    if read is not None and varying(read) not in ([], [read.ndim - 1]):
        tracer.labels.fix(read, because(Cause.READ_FROM_SEVERAL_PLACES, layer=weight.site))
        read = None
    read = None if read is None else np.broadcast_to(read.ravel(), left.shape[-1])
    written = tracer.parameters.written_by(weight, read, out.shape[-1])
    for t in added:
        labels = tracer.of(t)
        if labels is None or varying(labels) not in ([], [labels.ndim - 1]):
            tracer.fix([t], because(Cause.USED_OUTSIDE))
            tracer.labels.fix(written, because(Cause.MEETS_FIXED_SIZE, tensor=tracer.parameters.name_of(t)))
        else:
            tracer.labels.unite(labels.ravel(), written)
    tracer.set(out, written.reshape((1,) * (out.ndim - 1) + (-1,)))


def _of_batches(tracer: Tracer, factors: Sequence[tuple[Tensor, Array | None]], axis: int) -> Array:
    """Return one label for each index of the batch axis: whatever meets there has become equal.

    A factor without labels along that axis depends on its length, and keeps all channels.
    """
    lines: list[Array | None] = []
    factors = [(t, labels) for t, labels in factors if not is_neutral(labels)]
    for t, labels in factors:
        if labels is None or labels.shape[axis] == 1:
            lines += [None] if labels is None and t.shape[axis] > 1 else []
            if labels is not None and varying(labels):  # such as keys and values that all heads read
                tracer.labels.fix(labels, because(Cause.USED_BY_MANY))
            continue
        others = [i for i in range(labels.ndim) if i != axis]
        lines.append(tracer.tie(labels, others, because(Cause.SUMMED_BY_PRODUCT)))
    with_labels = [line.ravel() for line in lines if line is not None and line.size > 1]
    for line in with_labels[1:]:
        tracer.labels.unite(with_labels[0], line)
    in_order = with_labels[0].reshape([-1 if i == axis else 1 for i in range(factors[0][0].ndim)])
    count = in_order.size
    is_batch = len(np.unique(in_order)) < count  # images times heads are no number of a module
    if any(line is None for line in lines) and (is_batch or not tracer.count(count, in_order, axis, last=False)):
        fixed = next(t for t, labels in factors if labels is None and t.shape[axis] > 1)
        tracer.labels.fix(with_labels[0], because(Cause.MEETS_FIXED_SIZE, tensor=tracer.parameters.name_of(fixed)))
    elif len(factors) > 1:
        tracer.heads.append(with_labels[0])
    return in_order


def attend(tracer: Tracer, func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> None:
    """Attention of several heads makes a label of each. Of one: channels of queries meet those of keys, values stay."""
    query, key, value = args[:3]
    result = tree_leaves(out)[0]
    mask = kwargs.get("attn_mask", next((t for t in args[3:] if isinstance(t, Tensor)), None))
    factors = [(t, tracer.of(t)) for t in (query, key, value)]
    if query.ndim == 4 and any(labels is not None and labels.shape[1] > 1 for _, labels in factors):
        of_mask = None if mask is None else tracer.of(mask)
        if mask is not None and (of_mask is not None or (mask.ndim == 4 and mask.shape[1] > 1)):
            factors.append((mask, of_mask))
        heads = query.shape[1]  # several of them may share keys and values
        repeated = [
            (t, labels if labels is None or labels.shape[1] == 1 else np.repeat(labels, heads // labels.shape[1], 1))
            for t, labels in factors
        ]
        tracer.set(result, _of_batches(tracer, repeated, 1))
        return
    tracer.fix([mask], because(Cause.SUMMED_BY_ATTENTION))
    (_, of_queries), (_, of_keys), (_, labels) = factors[:3]
    if of_queries is not None and of_keys is not None and varying(of_queries) == varying(of_keys) == [query.ndim - 1]:
        tracer.labels.unite(of_queries.ravel(), of_keys.ravel())
    else:
        tracer.fix([query, key], because(Cause.SUMMED_BY_ATTENTION))
    if labels is not None and labels.size == labels.shape[-1]:
        tracer.set(result, labels)
    else:
        tracer.fix([value], because(Cause.SPLIT_INTO_HEADS))
