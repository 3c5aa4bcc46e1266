"""Families of torch's own modules, and the axes of their weights."""

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
    return 1 if isinstance(layer, TRANSPOSED) else 0


def input_axis(layer: nn.Module) -> int:
    """Return the axis of the weight that counts input channels."""
    return 1 - output_axis(layer)
