"""Samples of one layer: its inputs and the outputs that it should compute, as columns, a few images at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sparsefw.compression.structure.layers import AnyConv, channel_axis, groups_of
from sparsefw.compression.structure.same_padding import SamePaddedConv2d
from sparsefw.layer_types import CONVOLUTIONS

POSITIONS = 128  # per image and layer: of a larger feature map a random choice, the same for all images of a batch
PATCH_BYTES = 256 * 2**20


def choose_positions(layer: nn.Module, output: Tensor, generator: torch.Generator) -> Tensor:
    """Return the positions of a convolution's output map to sample; none for a linear layer."""
    if not isinstance(layer, AnyConv):
        return torch.empty(0, dtype=torch.long)
    total = math.prod(output.shape[-len(layer.kernel_size) :])
    if total <= POSITIONS:
        return torch.arange(total, device=output.device)
    return torch.randperm(total, generator=generator)[:POSITIONS].sort().values.to(output.device)


def samples(
    layer: nn.Module, x: Tensor, y: Tensor, rows: list[int] | None, positions: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield pairs x (g, inputs * taps, samples), y (g, outputs, samples) of a layer's input and the wanted output's rows."""
    axis = channel_axis(layer, y)
    if rows is not None:
        y = y.index_select(axis, torch.as_tensor(rows, device=y.device))
    if isinstance(layer, nn.Linear):
        yield tuple(_precise(t.reshape(-1, t.shape[-1]).T.unsqueeze(0)) for t in (x, y))  # type: ignore[misc]
        return
    assert isinstance(layer, CONVOLUTIONS)
    if axis == 0:  # without a batch axis
        x, y = x.unsqueeze(0), y.unsqueeze(0)
    bytes_each = 8 if x.dtype == torch.float64 else 4
    groups = groups_of(layer)
    per_image = bytes_each * x.shape[1] * math.prod(layer.kernel_size) * len(positions)
    images = max(1, PATCH_BYTES // per_image)
    for some_x, some_y in zip(x.split(images), y.split(images), strict=True):
        columns = patches(layer, _precise(some_x), positions, some_y.shape[2:])
        values = _precise(some_y).flatten(2)[:, :, positions]
        yield (
            columns.permute(1, 2, 0, 3).reshape(groups, -1, columns.shape[0] * len(positions)),
            values.permute(1, 0, 2).reshape(groups, values.shape[1] // groups, -1),
        )


def _precise(t: Tensor) -> Tensor:
    """Return the tensor in at least float32."""
    return t if t.dtype == torch.float64 else t.float()


def patches(layer: Any, x: Tensor, positions: Tensor, output_size: Sequence[int]) -> Tensor:
    """Return the inputs of a convolution at these positions of its output map: (images, channels, taps, positions)."""
    assert isinstance(layer, CONVOLUTIONS)
    padded = _padded(layer, x)
    linear = torch.zeros(1, 1, dtype=torch.long, device=x.device)
    rest = positions
    step = 1
    for axis in reversed(range(len(output_size))):
        at = (rest % output_size[axis]) * layer.stride[axis]
        rest = rest // output_size[axis]
        taps = torch.arange(layer.kernel_size[axis], device=x.device) * layer.dilation[axis]
        index = (taps.unsqueeze(1) + at.unsqueeze(0)) * step  # (taps of this axis, positions)
        linear = (index.unsqueeze(1) + linear.unsqueeze(0)).flatten(0, 1)
        step *= padded.shape[2 + axis]
    return padded.flatten(2)[:, :, linear.flatten()].unflatten(2, linear.shape)


def _padded(layer: Any, x: Tensor) -> Tensor:
    if isinstance(layer, SamePaddedConv2d):
        return layer.padded(x)
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    return functional.pad(x, layer._reversed_padding_repeated_twice, mode=mode)
