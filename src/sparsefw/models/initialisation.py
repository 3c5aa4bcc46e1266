"""The initial weights of the convolutional networks."""

from __future__ import annotations

from torch import nn


def initialise(model: nn.Module) -> None:
    """Set convolutions by He's rule for the backward pass, their biases to 0, norms to the identity; keep linear layers."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
