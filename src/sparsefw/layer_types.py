"""Families of torch's own modules, and the axes of their weights."""

import math
from collections.abc import Sequence

from torch import nn

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
NORMALISATION = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


def output_axis(layer: nn.Module) -> int:
    """Return the axis of the weight that counts output channels.

    >>> output_axis(nn.Conv2d(3, 8, 3)), output_axis(nn.ConvTranspose2d(3, 8, 3))
    (0, 1)
    """
    return 1 if isinstance(layer, TRANSPOSED) or is_stored_by_inputs(layer) else 0


def is_stored_by_inputs(layer: nn.Module) -> bool:
    """Return whether it is a linear layer with a weight of (inputs, outputs), as GPT-2's Conv1D, which torch does not know."""
    return type(layer).__name__ == "Conv1D" and getattr(getattr(layer, "weight", None), "ndim", 0) == 2


def input_axis(layer: nn.Module) -> int:
    """Return the axis of the weight that counts input channels."""
    return 1 - output_axis(layer)


def largest_rank(layer: nn.Module, shape: Sequence[int]) -> int:
    """Return the largest rank that a weight of this shape can have: of outputs x (inputs * kernel), one matrix per group.

    >>> [largest_rank(layer, layer.weight.shape) for layer in (nn.Conv2d(8, 6, 3), nn.Conv2d(8, 8, 3, groups=8))]
    [6, 1]
    """
    groups = layer.groups if isinstance(layer, (*CONVOLUTIONS, *TRANSPOSED)) else 1
    outputs = shape[output_axis(layer)]
    if isinstance(layer, TRANSPOSED):
        return min(outputs, math.prod(shape) // outputs // groups)
    return min(outputs // groups, math.prod(shape) // outputs)
