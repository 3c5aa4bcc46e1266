"""What the networks share: checks of their arguments, and how weights begin."""

from __future__ import annotations

from typing import Any

from torch import nn


def require_whole(least: int = 1, **arguments: Any) -> None:
    """ValueError unless every argument is a whole number of at least `least`."""
    for name, value in arguments.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")


def require_one_of(known: tuple[str, ...], **arguments: Any) -> None:
    for name, value in arguments.items():
        if value not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")


def initialise(model: nn.Module) -> None:
    """Convolutions by He's rule on the backward pass, their biases at 0; norms as the identity; linear layers untouched."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
