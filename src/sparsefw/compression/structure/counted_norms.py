"""Norms over channels that lost some: they divide by the original count, so they compute what silent channels would leave.

A norm of n channels, of which k are left and the others are 0:

    mean = sum(x) / n,   variance = (sum((x - mean)^2) + (n - k) mean^2) / n

Silent channels are those whose scale and offset are 0, and which nobody writes. A root mean square is the same without a mean.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

_AFTER = {"drop", "act"}  # parts that norms of timm call behind themselves


class NormForm(NamedTuple):
    """How a norm over channels averages.

    axis             of the channels, 1 or -1
    centred          whether the mean is subtracted
    over_positions   whether all axes but the first are averaged over, as in a group norm
    eps              added to the variance; None: that of the type of number
    groups           of channels, each of which is a norm of its own
    offset           added to the scale of each channel: 1 where a scale of 0 means 1, as in Gemma
    is_response      whether it is a global response norm, as in ConvNeXt V2
    """

    axis: int
    centred: bool
    over_positions: bool
    eps: float | None
    groups: int = 1
    offset: float = 0.0
    is_response: bool = False


class CountedNorm(nn.Module):
    """A norm over `count` channels, of which those are left that `weight` scales.

    Args:
        weight: The scale of each channel that is left.
        bias: The offset of each.
        count: How many channels there were.
        form: How the norm averages.
        after: Modules that the norm calls in the end, such as its activation, by their names.
    """

    def __init__(
        self,
        weight: nn.Parameter,
        bias: nn.Parameter | None,
        count: int,
        form: NormForm,
        after: Mapping[str, nn.Module] | None = None,
    ) -> None:
        super().__init__()
        self.weight = weight
        self.bias = bias
        self.count = count
        self.form = form
        self.after = tuple(after or ())
        self.silent: tuple[int, ...] = ()  # channels that count as 0, whatever arrives in them
        for name, module in (after or {}).items():
            self.add_module(name, module)

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        if self.silent:
            axis = self.form.axis % x.ndim
            wide = wide.index_fill(axis, torch.as_tensor(self.silent, device=x.device), 0)
        y = (self._response if self.form.is_response else self._normalised)(wide).to(x.dtype)
        for name in self.after:
            y = getattr(self, name)(y)
        return y

    def _normalised(self, x: Tensor) -> Tensor:
        axis, centred, over_positions, eps, groups, offset, _ = self.form
        grouped = x.unflatten(1, (groups, -1)) if groups > 1 else x
        axes = list(range(2 if groups > 1 else 1, grouped.ndim)) if over_positions else [axis]
        share = len(self.weight) / self.count
        mean = grouped.mean(axes, keepdim=True) * share if centred else 0.0
        deviation = grouped - mean
        variance = deviation.square().mean(axes, keepdim=True) * share
        if centred:
            variance = variance + (1 - share) * mean**2
        scale = (variance + (torch.finfo(x.dtype).eps if eps is None else eps)).rsqrt()
        y = (deviation * scale).reshape(x.shape) * (self._along(self.weight, x) + offset)
        return y if self.bias is None else y + self._along(self.bias, x)

    def _response(self, x: Tensor) -> Tensor:
        """Return x + bias + weight x n, with n the norm of a channel over the image, relative to the mean of these norms."""
        axis = self.form.axis % x.ndim
        norms = torch.linalg.vector_norm(x, dim=[i for i in range(1, x.ndim) if i != axis], keepdim=True)
        share = len(self.weight) / self.count
        relative = norms / (norms.mean(axis, keepdim=True) * share + (self.form.eps or 0.0))
        y = x + self._along(self.weight, x) * (x * relative)
        return y if self.bias is None else y + self._along(self.bias, x)

    def _along(self, vector: Tensor, x: Tensor) -> Tensor:
        """Return a number for each channel in the shape that meets the channels of x."""
        return vector.view((-1,) if self.form.axis == -1 else (-1, *[1] * (x.ndim - 2)))

    def extra_repr(self) -> str:
        return f"{len(self.weight)} of {self.count}, {self.form}"


def norm_form(module: Any) -> NormForm | None:
    """Return how a norm of any library averages; None for all but norms over all channels with a scale for each.

    Norms of other libraries are known by their names and parameters; the trial of removal.removable_channels shows on numbers
    whether they compute what is expected of them.
    """
    if isinstance(module, CountedNorm):
        return module.form
    parameters = dict(module.named_parameters(recurse=False))
    name = type(module).__name__.lower()
    parts = {part for part, _ in module.named_children()}
    is_norm = "norm" in name and parts <= _AFTER and not dict(module.named_buffers())
    if (
        not is_norm
        or "weight" not in parameters
        or set(parameters) - {"weight", "bias"}
        or parameters["weight"].ndim != 1
    ):
        return None
    if "responsenorm" in name:
        return NormForm(
            -1 if getattr(module, "channel_dim", 1) == -1 else 1, False, True, _eps(module), is_response=True
        )
    is_group = isinstance(module, nn.GroupNorm)
    centred = "rms" not in name and "t5" not in name
    if centred and not is_group and "layernorm" not in name:
        return None
    first = is_group or "2d" in name or getattr(module, "data_format", "") == "channels_first"
    groups = module.num_groups if is_group else 1
    return NormForm(1 if first else -1, centred, is_group, _eps(module), groups, 0.0 if centred else _offset(module))


def counted(module: Any, form: NormForm) -> CountedNorm:
    """Return a norm of this form as one that can lose channels."""
    if isinstance(module, CountedNorm):
        return module
    after = dict(module.named_children())
    norm = CountedNorm(module.weight, getattr(module, "bias", None), len(module.weight), form, after)
    return norm.train(module.training)


_OFFSETS: dict[type[nn.Module], float] = {}


def _offset(module: nn.Module) -> float:
    """Return what a root-mean-square norm adds to its scales: of ones, whose mean square is 1, it makes these sums."""
    kind = type(module)
    if kind not in _OFFSETS:
        probe = copy.copy(module)  # with a weight of its own: the module's may be on no device
        scales = torch.full(module.get_parameter("weight").shape, 0.5)
        vars(probe)["_parameters"] = {**module._parameters, "weight": nn.Parameter(scales)}
        try:
            with torch.no_grad():
                made = kind.forward(probe, torch.ones_like(scales))
        except (RuntimeError, TypeError, IndexError, ValueError):  # it takes another shape, and the trial decides
            made = scales
        _OFFSETS[kind] = float(bool((made > 1).all()))
    return _OFFSETS[kind]


def _eps(module: Any) -> float | None:
    for name in ("eps", "variance_epsilon", "epsilon"):
        if hasattr(module, name):
            eps: float | None = getattr(module, name)
            return eps
    return None
