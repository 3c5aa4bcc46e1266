"""Layers that compute something else for the first slices of a batch: networks of several sizes in one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from sparsefw.compression.structure.layers import as_matrices, channel_axis, from_matrices, weight_of

_CONVOLVE: dict[int, Callable[..., Tensor]] = {
    1: F.conv1d,
    2: F.conv2d,
    3: F.conv3d,
}  # by axes besides images and channels


class Sliced(nn.Module):
    """A layer that computes something else for the first slices of a batch. Its attributes exist for the duration of a block.

    _slice_ends          where these slices end, as fractions of the batch
    _slice_parts         the first part of every slice, if the batch is divided into parts of equal length
    _slice_average       (parts, parts): averages a figure of the parts over the slice of each; None if there are no equal parts
    _slice_masks         (parts, channels): of the outputs
    _slice_axis          of the channels in the outputs
    _slice_keeps_bias    whether outputs that are masked are the bias
    _slice_projections   for every slice, (groups, n, n): of the outputs without their bias, or of the inputs
    _slice_of_inputs     which of the two
    _slice_by_weight     whether the weight may be projected instead, which is less work where a layer has many positions
    """

    _slice_ends: tuple[float, ...]
    _slice_parts: tuple[int, ...]
    _slice_average: Tensor | None
    _slice_masks: Tensor | None = None
    _slice_axis: int = -1
    _slice_keeps_bias: bool = False
    _slice_projections: Tensor | None = None
    _slice_of_inputs: bool = False
    _slice_by_weight: bool = False

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        if self._slice_projections is not None:
            return self._of_lower_rank(args[0], self._slice_projections)
        output = super().forward(*args, **kwargs)
        masks = self._slice_masks
        if masks is None:
            return output
        *small, whole = _divided(output, self._slice_ends)
        axis = self._slice_axis
        bias: Any = self.bias if self._slice_keeps_bias else None
        silenced = []
        for outputs, part in zip(small, self._slice_parts, strict=False):
            mask = masks[part]
            kept = outputs * _along(mask, outputs, axis).to(outputs.dtype)
            silenced.append(kept if bias is None else kept + _along((1 - mask) * bias, kept, axis).to(kept.dtype))
        return torch.cat([*silenced, whole])

    def _of_lower_rank(self, x: Tensor, projections: Tensor) -> Tensor:
        """Return W x with P W instead of W for the first slices, or W P; it is P (W x), or W (P x)."""
        layer: Any = self
        positions = x.numel() // x.shape[channel_axis(self, x)]
        if self._slice_by_weight and positions > as_matrices(self).shape[-1]:
            *small, whole = _divided(x, self._slice_ends)
            outputs = [self._with_weight(part, self._lowered(P)) for P, part in zip(projections, small, strict=True)]
            return torch.cat([*outputs, super().forward(whole)])
        if self._slice_of_inputs:
            return super().forward(self._projected(x, projections, None))
        return self._projected(super().forward(x), projections, layer.bias)

    def _lowered(self, projection: Tensor) -> Tensor:
        matrices = as_matrices(self)
        matrices = matrices @ projection if self._slice_of_inputs else projection @ matrices
        return from_matrices(self, matrices, weight_of(self).shape)

    def _with_weight(self, x: Tensor, weight: Tensor) -> Tensor:
        layer: Any = self
        return (
            F.linear(x, weight, layer.bias)
            if isinstance(self, nn.Linear)
            else layer._conv_forward(x, weight, layer.bias)
        )

    def _projected(self, x: Tensor, projections: Tensor, bias: Any) -> Tensor:
        *small, whole = _divided(x, self._slice_ends)
        return torch.cat([*(self._times(P, part, bias) for P, part in zip(projections, small, strict=True)), whole])

    def _times(self, projection: Tensor, x: Tensor, bias: Any) -> Tensor:
        """Return  P (x - bias) + bias  for the channels of x, group by group."""
        kernel = projection.flatten(0, 1)
        if bias is not None:
            bias = bias - (projection @ bias.view(len(projection), -1, 1)).flatten()
        if isinstance(self, nn.Linear):
            return F.linear(x, kernel, bias)
        convolve = _CONVOLVE[x.ndim - 2]
        return convolve(x, kernel.view(*kernel.shape, *[1] * (x.ndim - 2)), bias, groups=len(projection))


class SlicedBatchNorm(Sliced):
    """A batch norm that normalises every slice by itself; running statistics are those of the whole network."""

    def forward(self, x: Tensor) -> Tensor:
        norm: Any = self
        if not (norm.training or norm.running_mean is None):
            return super().forward(x)
        average = self._slice_average
        compiled = torch.compiler.is_compiling() and norm.momentum is not None
        if compiled and average is not None and x.shape[0] % len(average) == 0:
            return self._in_equal_parts(x, average)
        *small, whole = _divided(x, self._slice_ends)
        if any(inputs.numel() == x.shape[1] for inputs in (*small, whole)):
            raise ValueError(
                f"of a batch of {len(x)}, one of {len(small) + 1} networks sees one image, which batch norms cannot normalise: "
                "leave such a last batch out (drop_last=True), or draw fewer sizes"
            )
        outputs = []
        for inputs, part in zip(small, self._slice_parts, strict=False):
            mask = None if self._slice_masks is None else self._slice_masks[part]
            weight, bias = _masked(norm.weight, norm.bias, mask)
            outputs.append(F.batch_norm(inputs, None, None, weight, bias, True, 0.0, norm.eps))
        outputs.append(super(Sliced, self).forward(whole))
        return torch.cat(outputs)

    def _in_equal_parts(self, x: Tensor, average: Tensor) -> Tensor:
        """Compute the same as few expressions over the whole batch, which a compiler fuses into the launches of one batch norm.

        The moments of a slice are those of its parts:  mean = avg mean_i,  variance = avg (variance_i + (mean_i - mean)^2).
        """
        norm: Any = self
        average = average.to(torch.promote_types(x.dtype, torch.float32))
        with torch.no_grad():
            parts = x.unflatten(0, (len(average), -1)).to(average.dtype)
            part_variance, part_mean = torch.var_mean(parts, dim=[1, *range(3, parts.ndim)], correction=0)
            mean = _averaged(part_mean, average)
            variance = _averaged(part_variance + (part_mean - mean).square(), average)
            if norm.running_mean is not None:
                norm.num_batches_tracked.add_(1)
                count = (len(average) - self._slice_parts[-1]) * parts[0, :, 0].numel()
                unbiased = variance[-1] * (count / (count - 1))
                norm.running_mean.lerp_(mean[-1].to(norm.running_mean.dtype), norm.momentum)
                norm.running_var.lerp_(unbiased.to(norm.running_var.dtype), norm.momentum)
            scale = (variance + norm.eps).rsqrt()
        weight, bias = _masked(norm.weight, norm.bias, self._slice_masks)
        weight = torch.ones_like(mean) if weight is None else weight.expand_as(mean)
        bias = torch.zeros_like(mean) if bias is None else bias.expand_as(mean)
        normalised: Tensor = _Normalised.apply(x, weight, bias, mean, scale, average)
        return normalised


class _Normalised(torch.autograd.Function):
    """y = weight (x - mean) scale + bias, where mean and scale are those of the slices of x, and change with it.

    With g = dL/dy and avg over a slice:  dL/dx = weight scale (g - avg g - (x - mean) scale^2 avg(g (x - mean))).
    Derived step by step, gradients of the batch's size would be written and read several times.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, scale: Tensor, average: Tensor
    ) -> Tensor:
        ctx.save_for_backward(x, weight, mean, scale, average)
        centred = x - _of_images(mean, x)
        return (centred * _of_images(weight * scale, x) + _of_images(bias, x)).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, scale, average = ctx.saved_tensors
        g = gradients[0].to(mean.dtype)
        centred = x - _of_images(mean, x)

        def summed(values: Tensor) -> Tensor:
            parts = values.unflatten(0, (len(mean), -1))
            return parts.sum([1, *range(3, parts.ndim)])

        of_bias, of_centred = summed(g), summed(g * centred)
        count = x.numel() // mean.numel()  # figures of a channel in a part
        shift = _averaged(of_bias, average) / count
        slope = _averaged(of_centred, average) * scale.square() / count
        dx = (g - _of_images(shift, x) - centred * _of_images(slope, x)) * _of_images(weight * scale, x)
        of_weight = (of_centred * scale).to(weight.dtype)
        return dx.to(x.dtype), of_weight, of_bias.to(weight.dtype), None, None, None


def _averaged(figures: Tensor, average: Tensor) -> Tensor:
    """Return, for each part, the average of the figures (parts, channels) over its slice."""
    return (average.unsqueeze(-1) * figures).sum(1)


def _of_images(figures: Tensor, x: Tensor) -> Tensor:
    """Return the figures (parts, channels) of the part of each image, in a shape to compute with x."""
    of_images = figures.repeat_interleave(x.shape[0] // len(figures), 0)
    return of_images.view(*of_images.shape, *[1] * (x.ndim - 2))


def _masked(weight: Tensor | None, bias: Tensor | None, mask: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Return scale and offset of a batch norm, 0 where it is silenced."""
    if mask is None:
        return weight, bias
    return mask if weight is None else weight * mask, None if bias is None else bias * mask


_sliced_classes: dict[type[nn.Module], type[nn.Module]] = {}


def sliced(kind: type[nn.Module]) -> type[nn.Module]:
    """Return the class of a layer of this class in the block; compiled graphs are guarded by the classes of layers."""
    if kind not in _sliced_classes:
        base = SlicedBatchNorm if issubclass(kind, _BatchNorm) else Sliced
        _sliced_classes[kind] = type(kind.__name__, (base, kind), {})
    return _sliced_classes[kind]


def _divided(x: Tensor, ends: Sequence[float]) -> Sequence[Tensor]:
    return x.tensor_split([round(end * x.shape[0]) for end in ends])


def _along(vector: Tensor, like: Tensor, axis: int) -> Tensor:
    """Return a vector in a shape in which it multiplies this axis of a tensor."""
    shape = [1] * like.ndim
    shape[axis] = -1
    return vector.view(shape)
