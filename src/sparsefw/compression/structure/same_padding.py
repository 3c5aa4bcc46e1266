"""Convolutions whose zeros around the image depend on its size, as TensorFlow's SAME has them."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


class SamePaddedConv2d(nn.Conv2d):
    """A convolution with just so many zeros around that it gives ceil(size / stride) outputs; of an odd number more lie behind.

    >>> import torch
    >>> SamePaddedConv2d(1, 1, 3, stride=2)(torch.zeros(1, 1, 7, 8)).shape
    torch.Size([1, 1, 4, 4])
    """

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(self.padded(input))

    def padded(self, x: Tensor) -> Tensor:
        """Return the image with zeros around."""
        amounts: list[int] = []
        for axis in (1, 0):  # functional.pad counts from the last axis
            size = x.shape[axis - 2]
            outputs = -(-size // self.stride[axis])
            reach = (outputs - 1) * self.stride[axis] + (self.kernel_size[axis] - 1) * self.dilation[axis] + 1
            zeros = max(reach - size, 0)
            amounts += [zeros // 2, zeros - zeros // 2]
        return functional.pad(x, amounts)
