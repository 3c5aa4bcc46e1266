"""Layers that compute something else for the first slices of a batch: networks of several sizes in one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from sparsefw.compression.in_place.slice_norms import (
    Moments,
    moments_of_equal_parts,
    moments_of_processes,
    normalised,
)
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
    _slice_attention     what computes the same as an nn.MultiheadAttention, from layers of which some are sliced
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
    _slice_attention: nn.Module | None = None

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
    """A batch norm that normalises every slice by itself; running statistics are those of the whole network.

    Where it synchronises its statistics, a slice is that of the batches of all processes.
    """

    def forward(self, x: Tensor) -> Tensor:
        norm: Any = self
        if not (norm.training or norm.running_mean is None):
            return super().forward(x)
        slices = _divided(x, self._slice_ends)
        processes = _synchronised(norm)
        if processes is not None:
            return self._among(processes, x, [len(images) for images in slices])
        average = self._slice_average
        if torch.compiler.is_compiling() and average is not None and x.shape[0] % len(average) == 0:
            with torch.no_grad():
                moments = moments_of_equal_parts(x, average, self._slice_parts[-1])
            return self._normalised(x, moments, self._slice_masks)
        *small, whole = slices
        if any(inputs.numel() == x.shape[1] for inputs in slices):
            raise ValueError(
                f"of a batch of {len(x)}, one of {len(slices)} networks sees one image, which batch norms cannot normalise: "
                "leave such a last batch out (drop_last=True), or draw fewer sizes"
            )
        outputs = []
        for inputs, part in zip(small, self._slice_parts, strict=False):
            mask = None if self._slice_masks is None else self._slice_masks[part]
            weight, bias = _masked(norm.weight, norm.bias, mask)
            outputs.append(F.batch_norm(inputs, None, None, weight, bias, True, 0.0, norm.eps))
        outputs.append(super(Sliced, self).forward(whole))
        return torch.cat(outputs)

    @torch.compiler.disable  # its backward pass communicates, which not every torch can trace
    def _among(self, processes: Any, x: Tensor, lengths: Sequence[int]) -> Tensor:
        if not all(lengths):
            raise ValueError(
                f"of a batch of {len(x)} images in this process, one of {len(lengths)} networks sees none: "
                "leave such a last batch out (drop_last=True), or draw fewer sizes"
            )
        with torch.no_grad():
            moments = moments_of_processes(x, lengths, processes)
        masks = self._slice_masks
        return self._normalised(
            x, moments, None if masks is None else torch.stack([masks[part] for part in self._slice_parts])
        )

    def _normalised(self, x: Tensor, moments: Moments, masks: Tensor | None) -> Tensor:
        norm: Any = self
        if norm.running_mean is not None:
            with torch.no_grad():
                norm.num_batches_tracked.add_(1)
                mean, variance = norm.running_mean, norm.running_var
                step = norm.num_batches_tracked.to(mean.dtype).reciprocal() if norm.momentum is None else norm.momentum
                unbiased = moments.variance[-1] * (moments.whole / (moments.whole - 1))
                mean.lerp_(moments.mean[-1].to(mean.dtype), step)
                variance.lerp_(unbiased.to(variance.dtype), step)
        return normalised(x, *_masked(norm.weight, norm.bias, masks), moments, norm.eps)


class SlicedAttention(Sliced):
    """An nn.MultiheadAttention that calls its layers."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        plain = self._slice_attention
        assert plain is not None
        plain.training = self.training
        return plain(*args, **kwargs)


def _synchronised(norm: nn.Module) -> Any:
    """Return the processes over whose images a norm takes its statistics; None if these are those of this process alone."""
    if not (isinstance(norm, nn.SyncBatchNorm) and norm.training and distributed.is_initialized()):
        return None
    processes = norm.process_group or distributed.group.WORLD
    return processes if distributed.get_world_size(processes) > 1 else None


def _masked(weight: Tensor | None, bias: Tensor | None, mask: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Return scale and offset of a batch norm, 0 where it is silenced."""
    if mask is None:
        return weight, bias
    return mask if weight is None else weight * mask, None if bias is None else bias * mask


_BASES: dict[type[nn.Module], type[Sliced]] = {_BatchNorm: SlicedBatchNorm, nn.MultiheadAttention: SlicedAttention}
_sliced_classes: dict[type[nn.Module], type[nn.Module]] = {}


def sliced(kind: type[nn.Module]) -> type[nn.Module]:
    """Return the class of a layer of this class in the block; compiled graphs are guarded by the classes of layers."""
    if kind not in _sliced_classes:
        base = next((base for of, base in _BASES.items() if issubclass(kind, of)), Sliced)
        _sliced_classes[kind] = type(kind.__name__, (base, kind), {})
    return _sliced_classes[kind]


def _divided(x: Tensor, ends: Sequence[float]) -> Sequence[Tensor]:
    return x.tensor_split([round(end * x.shape[0]) for end in ends])


def _along(vector: Tensor, like: Tensor, axis: int) -> Tensor:
    """Return a vector in a shape in which it multiplies this axis of a tensor."""
    shape = [1] * like.ndim
    shape[axis] = -1
    return vector.view(shape)
