"""Networks of several sizes side by side: in one pass, every slice of a batch sees a size of its own.

Channels are silenced behind the layers that write them, for the images of one slice, instead of in the weights; and batch norms
normalise every slice by its own statistics. So a batch of several sizes costs one pass, and the weights stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map

from sparsefw.compression.in_place.channels import ChannelCut
from sparsefw.compression.in_place.restriction import InPlaceCut, restricted, unchanged_buffers
from sparsefw.compression.structure.channels import SEPARATE_NORMS, Side
from sparsefw.compression.structure.gaps import relative_gap
from sparsefw.compression.structure.layers import AnyConv, call_on_copy
from sparsefw.layer_types import CONVOLUTIONS, TRANSPOSED
from sparsefw.text import first_line

# How far one pass may be from a pass for each size, by rounding. A mistake changes outputs by their own size.
_TOLERANCE = 1e-2
_TRIED_RATIO = 0.5
MOST_PARTS = 64  # of equal length, in which a batch is thought to be divided


class OnePassError(ValueError):
    """Why a network cannot have several sizes in one pass."""


class SideBySide:
    """Gives the first slices of every batch smaller networks, and the last one the whole network.

    Args:
        model: The network.
        cut: How it is made smaller.
        example: An input; one pass is compared with one for each size, and OnePassError is raised where they disagree.
    """

    def __init__(self, model: nn.Module, cut: ChannelCut, example: Any) -> None:
        self._cut = cut
        self._masked: dict[nn.Module, tuple[int, int]] = {}  # the index of its mask, and its outputs per masked channel
        for i, (layer, side) in enumerate(cut.sites):
            repeated = _outputs_per_channel(model, layer, side, cut.norms)
            if repeated:
                self._masked[model.get_submodule(layer)] = i, repeated
        self._norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
        self._divisions: dict[tuple[float, ...], _Division] = {}
        for name, module in model.named_modules():
            if isinstance(module, _BatchNorm) and type(module).forward is not _BatchNorm.forward:
                raise OnePassError(f"{name} is a {type(module).__name__}, which is no batch norm of torch")
        self._require_agreement(model, example)

    @contextmanager
    def slices(self, ends: Sequence[float], numbers: Tensor) -> Iterator[None]:
        """Divide every batch of the block.

        Args:
            ends: Where the slices of the smaller networks end, as fractions of the batch; the rest sees the whole network.
            numbers: Of units that go, a row for each of these slices.
        """
        if len(ends) != len(numbers):
            raise ValueError(f"there are {len(numbers)} chosen sizes, and ends of {len(ends)} slices for them")
        division = self._division(tuple(ends), numbers.device)
        of_slices = torch.cat([numbers, torch.zeros_like(numbers[:1])])
        masks = self._cut.masks(of_slices[division.slice_of_part])
        keeps_bias = self._cut.norms is None  # where filters are masked, their biases stay
        modules = list(dict.fromkeys([*self._norms, *self._masked]))
        classes = [type(module) for module in modules]
        if any(issubclass(kind, _Sliced) for kind in classes):
            raise ValueError("the network already has several sizes: this block is within another one")
        try:
            for module, kind in zip(modules, classes, strict=True):
                mask = None
                if module in self._masked:
                    index, repeated = self._masked[module]
                    mask = masks[index] if repeated == 1 else masks[index].repeat_interleave(repeated, 1)
                vars(module)["_slice_ends"] = division.ends
                vars(module)["_slice_parts"] = division.first_parts
                vars(module)["_slice_average"] = division.average
                vars(module)["_slice_masks"] = mask
                vars(module)["_slice_keeps_bias"] = keeps_bias and getattr(module, "bias", None) is not None
                module.__class__ = _sliced(kind)
            yield
        finally:
            for module, kind in zip(modules, classes, strict=True):
                module.__class__ = kind
                for name in _Sliced.__annotations__:
                    vars(module).pop(name, None)

    def _division(self, ends: tuple[float, ...], device: torch.device) -> _Division:
        if ends not in self._divisions:
            self._divisions[ends] = _Division.at(ends, device)
        return self._divisions[ends]

    @torch.no_grad()
    def _require_agreement(self, model: nn.Module, example: Any) -> None:
        """Compare one pass over two sizes with one pass for each, in numbers."""
        numbers = self._cut.numbers(_TRIED_RATIO).to(next(model.parameters()).device)
        small, whole = _random_like(example, seed=0), _random_like(example, seed=1)
        with _batch_statistics(model), unchanged_buffers(model), torch.backends.cudnn.flags(allow_tf32=False):
            try:
                with restricted(model, self._cut.restriction(numbers)):
                    expected_small = call_on_copy(model, small)
                expected = tree_map(_joined, expected_small, call_on_copy(model, whole))
                with self.slices([0.5], numbers.unsqueeze(0)):
                    found = call_on_copy(model, tree_map(_joined, small, whole))
            except Exception as error:  # such as a model that takes batches of one size only
                raise OnePassError(f"it does not run on a larger batch: {first_line(error)}") from error
        gap = relative_gap(expected, found)
        if not gap <= _TOLERANCE:
            raise OnePassError(f"its outputs for several sizes at once differ from those one by one, by {gap:.2g}")


def side_by_side(model: nn.Module, cut: InPlaceCut, example: Any) -> SideBySide:
    """Return how this network has several sizes in one pass; OnePassError says why it cannot."""
    if not isinstance(cut, ChannelCut):
        raise OnePassError("only channels can be silenced for some images")
    return SideBySide(model, cut, example)


class _Division(NamedTuple):
    """The slices of a batch, and the equal parts that they consist of; where there are no such parts, the slices themselves.

    ends            where the slices end, as fractions of the batch, but for the last one
    first_parts     of each slice
    slice_of_part   on the device
    average         (parts, parts): averages a figure of the parts over the slice of each; None if they are not equal
    """

    ends: tuple[float, ...]
    first_parts: tuple[int, ...]
    slice_of_part: Tensor
    average: Tensor | None

    @classmethod
    def at(cls, ends: tuple[float, ...], device: torch.device) -> _Division:
        bounds = _bounds_in_parts(ends)
        lengths = torch.ones(len(ends) + 1, dtype=torch.int64) if bounds is None else torch.tensor(bounds).diff()
        slice_of_part = torch.arange(len(lengths)).repeat_interleave(lengths)
        first = (lengths.cumsum(0) - lengths).tolist()
        average = None
        if bounds is not None:
            average = ((slice_of_part[:, None] == slice_of_part) / lengths[slice_of_part]).to(device)
        return cls(ends, tuple(first), slice_of_part.to(device), average)


def _bounds_in_parts(ends: Sequence[float]) -> list[int] | None:
    """Return where slices begin and end, counted in the fewest equal parts of a batch; None where these would be too many.

    >>> _bounds_in_parts([0.25, 0.5]), _bounds_in_parts([0.3141])
    ([0, 1, 2, 4], None)
    """
    for count in range(1, MOST_PARTS + 1):
        bounds = [0, *(round(count * end) for end in ends), count]
        exact = all(abs(count * end - bound) < 1e-9 for end, bound in zip(ends, bounds[1:], strict=False))
        if exact and all(start < stop for start, stop in pairwise(bounds)):
            return bounds
    return None


class _Sliced(nn.Module):
    """A layer whose outputs are silenced slice by slice. `_slice_masks` has a row for each part of a _Division."""

    _slice_ends: tuple[float, ...]
    _slice_parts: tuple[int, ...]
    _slice_average: Tensor | None
    _slice_masks: Tensor | None
    _slice_keeps_bias: bool

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        output = super().forward(*args, **kwargs)
        masks = self._slice_masks
        if masks is None:
            return output
        *small, whole = _divided(output, self._slice_ends)
        axis = 1 if isinstance(self, (*CONVOLUTIONS, *TRANSPOSED, *SEPARATE_NORMS)) else -1
        bias: Any = self.bias if self._slice_keeps_bias else None
        silenced = []
        for outputs, part in zip(small, self._slice_parts, strict=False):
            mask = masks[part]
            kept = outputs * _along(mask, outputs, axis).to(outputs.dtype)
            silenced.append(kept if bias is None else kept + _along((1 - mask) * bias, kept, axis).to(kept.dtype))
        return torch.cat([*silenced, whole])


class _SlicedBatchNorm(_Sliced):
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
        outputs = []
        for inputs, part in zip(small, self._slice_parts, strict=False):
            mask = None if self._slice_masks is None else self._slice_masks[part]
            weight, bias = _masked(norm.weight, norm.bias, mask)
            outputs.append(F.batch_norm(inputs, None, None, weight, bias, True, 0.0, norm.eps))
        outputs.append(super(_Sliced, self).forward(whole))
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


def _sliced(kind: type[nn.Module]) -> type[nn.Module]:
    """Return the class of a layer of this class in the block; compiled graphs are guarded by the classes of layers."""
    if kind not in _sliced_classes:
        base = _SlicedBatchNorm if issubclass(kind, _BatchNorm) else _Sliced
        _sliced_classes[kind] = type(kind.__name__, (base, kind), {})
    return _sliced_classes[kind]


def _outputs_per_channel(model: nn.Module, layer: str, side: Side, norms: dict[str, str] | None) -> int:
    """Return how many outputs of a layer a channel has, if they are to be silenced; 0 if they need not be."""
    if layer in dict(model.named_parameters()):
        raise OnePassError(f"{layer} is a parameter outside of layers")
    module: Any = model.get_submodule(layer)
    if side == Side.HEADS:
        raise OnePassError(f"{layer} mixes its heads")
    if isinstance(module, nn.SyncBatchNorm):
        raise OnePassError(f"{layer} synchronises its statistics among processes")
    if isinstance(module, SEPARATE_NORMS):
        return 1
    if side == Side.OUT:
        if norms is None:
            return 1
        behind = norms.get(layer)
        return 0 if behind is not None and model.get_submodule(behind).affine else 1
    if isinstance(module, AnyConv) and module.bias is not None:  # depthwise
        return int(module.out_channels // module.in_channels)
    return 0


def _divided(x: Tensor, ends: Sequence[float]) -> Sequence[Tensor]:
    return x.tensor_split([round(end * x.shape[0]) for end in ends])


def _along(vector: Tensor, like: Tensor, axis: int) -> Tensor:
    """Return a vector in a shape in which it multiplies this axis of a tensor."""
    shape = [1] * like.ndim
    shape[axis] = -1
    return vector.view(shape)


def _joined(first: Any, second: Any) -> Any:
    return torch.cat([first, second]) if isinstance(first, Tensor) else first


def _random_like(example: Any, seed: int) -> Any:
    """Return random inputs of the example's shapes, twice as many; whole numbers, such as tokens, stay."""
    draw = torch.Generator().manual_seed(seed)

    def randomised(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        many = x.repeat(2, *[1] * (x.ndim - 1))
        return torch.randn(many.shape, generator=draw).to(many) if many.is_floating_point() else many

    return tree_map(randomised, example)


@contextmanager
def _batch_statistics(model: nn.Module) -> Iterator[None]:
    """Let batch norms normalise by the batch, and nothing be random, for the duration of a block."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in modes:
            module.training = isinstance(module, _BatchNorm)
        yield
    finally:
        for module, mode in modes:
            module.training = mode
