"""Batch norms of the slices of a batch as few expressions over all of it, also over the images of several processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed


class Moments(NamedTuple):
    """The moments of slices, a row for each part of a batch. Parts are of equal length, or they are the slices themselves.

    lengths          of the parts, in images
    mean, variance   of the slice of each part, (parts, channels)
    average          (parts, parts): takes sums over parts to means over their slices, once they are added up over the processes
    whole            how many values of a channel the last slice has
    processes        whose images are normalised together; None: those of this process alone
    """

    lengths: tuple[int, ...]
    mean: Tensor
    variance: Tensor
    average: Tensor
    whole: int | Tensor
    processes: Any = None


def moments_of_equal_parts(x: Tensor, average: Tensor, whole_part: int) -> Moments:
    """Return the moments of slices that consist of parts of equal length.

    Args:
        average: (parts, parts), averages a figure of the parts over the slice of each.
        whole_part: The first part of the last slice.
    """
    average = average.to(_wide(x))
    lengths = (len(x) // len(average),) * len(average)
    mean, variance = _pooled(*_of_parts(x, lengths), lambda figures: _averaged(figures, average))
    values = x.numel() // (len(average) * x.shape[1])
    return Moments(lengths, mean, variance, average / values, (len(average) - whole_part) * values)


def moments_of_processes(x: Tensor, lengths: Sequence[int], processes: Any) -> Moments:
    """Return the moments of slices over the images of several processes, which may have unequally many.

    Args:
        lengths: Of the slices, in images.
    """
    own_mean, own_variance = _of_parts(x, lengths)
    values = x[0, 0].numel()
    own_counts = torch.cat([own_mean.new_full((1, 1), length * values) for length in lengths])
    own = torch.cat([own_mean, own_variance, own_counts], 1)
    of_all = [torch.empty_like(own) for _ in range(distributed.get_world_size(processes))]
    distributed.all_gather(of_all, own, group=processes)
    means, variances, counts = torch.stack(of_all).split([x.shape[1], x.shape[1], 1], -1)
    total = counts.sum(0)
    mean, variance = _pooled(means, variances, lambda figures: (counts / total * figures).sum(0))
    return Moments(tuple(lengths), mean, variance, total.reciprocal().flatten().diag(), total[-1], processes)


def normalised(x: Tensor, weight: Tensor | None, bias: Tensor | None, moments: Moments, eps: float) -> Tensor:
    """Return the images normalised by the moments of their slices; scale and offset have a row for all parts or for each."""
    mean = moments.mean
    weight = torch.ones_like(mean) if weight is None else weight.expand_as(mean)
    bias = torch.zeros_like(mean) if bias is None else bias.expand_as(mean)
    scale = (moments.variance + eps).rsqrt()
    y: Tensor = _Normalised.apply(x, weight, bias, mean, scale, moments.average, moments.lengths, moments.processes)
    return y


class _Normalised(torch.autograd.Function):
    """y = weight (x - mean) scale + bias, where mean and scale are those of the slices of x, and change with it.

    With g = dL/dy and avg over a slice:  dL/dx = weight scale (g - avg g - (x - mean) scale^2 avg(g (x - mean))).
    Derived step by step, gradients of the batch's size would be written and read several times.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        mean: Tensor,
        scale: Tensor,
        average: Tensor,
        lengths: tuple[int, ...],
        processes: Any,
    ) -> Tensor:
        ctx.save_for_backward(x, weight, mean, scale, average)
        ctx.lengths = lengths
        ctx.processes = processes
        centred = x - _of_images(mean, x, lengths)
        return (centred * _of_images(weight * scale, x, lengths) + _of_images(bias, x, lengths)).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, scale, average = ctx.saved_tensors
        lengths = ctx.lengths
        g = gradients[0].to(mean.dtype)
        centred = x - _of_images(mean, x, lengths)
        of_bias, of_centred = _summed(g, lengths), _summed(g * centred, lengths)
        means = torch.stack([_averaged(of_bias, average), _averaged(of_centred, average)])
        if ctx.processes is not None:
            distributed.all_reduce(means, group=ctx.processes)
        shift, slope = means[0], means[1] * scale.square()
        of_x = (g - _of_images(shift, x, lengths) - centred * _of_images(slope, x, lengths)) * _of_images(
            weight * scale, x, lengths
        )
        of_weight = (of_centred * scale).to(weight.dtype)
        return of_x.to(x.dtype), of_weight, of_bias.to(weight.dtype), None, None, None, None, None


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _of_parts(x: Tensor, lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return means and variances of the parts, (parts, channels)."""
    x = x.to(_wide(x))
    if len(set(lengths)) == 1:
        variance, mean = torch.var_mean(x.unflatten(0, (len(lengths), -1)), [1, *range(3, x.ndim + 1)], correction=0)
        return mean, variance
    each = [torch.var_mean(part, [0, *range(2, x.ndim)], correction=0) for part in x.split(list(lengths))]
    return torch.stack([mean for _, mean in each]), torch.stack([variance for variance, _ in each])


def _pooled(means: Tensor, variances: Tensor, averaged: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Return mean = avg mean_i and variance = avg (variance_i + (mean_i - mean)^2), the moments of several parts together."""
    mean = averaged(means)
    return mean, averaged(variances + (means - mean).square())


def _averaged(figures: Tensor, average: Tensor) -> Tensor:
    """Return, for each part, the average of the figures (parts, channels) over its slice."""
    return (average.unsqueeze(-1) * figures).sum(1)


def _summed(values: Tensor, lengths: Sequence[int]) -> Tensor:
    """Return the sums over each part, (parts, channels)."""
    if len(set(lengths)) == 1:
        return values.unflatten(0, (len(lengths), -1)).sum([1, *range(3, values.ndim + 1)])
    return torch.stack([part.sum([0, *range(2, values.ndim)]) for part in values.split(list(lengths))])


def _of_images(figures: Tensor, x: Tensor, lengths: Sequence[int]) -> Tensor:
    """Return the figures (parts, channels) of the part of each image, in a shape to compute with x."""
    if len(set(lengths)) == 1:
        of_images = figures.repeat_interleave(lengths[0], 0)
    else:
        of_images = torch.cat([row.expand(length, -1) for row, length in zip(figures, lengths, strict=True)])
    return of_images.view(*of_images.shape, *[1] * (x.ndim - 2))
