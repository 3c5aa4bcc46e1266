"""Networks that a file names, built in no more memory than the weights in the file justify."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sparsefw.limits import NETWORK_NUMBERS, NETWORK_TENSORS, NUMBERS_PER_WEIGHT
from sparsefw.models.registry import build_registered

# What building a network raises where its record, from a file, asks for one that does not exist.
BUILD_ERRORS = (
    ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, StopIteration, TypeError, ValueError,
)  # fmt: skip
_CREATE = {
    torch.empty,
    torch.zeros,
    torch.ones,
    torch.full,
    torch.rand,
    torch.randn,
    torch.arange,
}  # from which layers make their weights


def build_skeleton(record: dict[str, Any]) -> nn.Module | None:
    """Build the network of a record on the meta device, in no memory; None if it reads values while it is built."""
    try:
        with torch.device("meta"), _Bounded(math.inf):
            return build_registered(record)
    except RuntimeError:
        return None


def build_for(record: dict[str, Any], weights: Mapping[str, Tensor]) -> nn.Module:
    """Build the network of a record on the CPU; ValueError if it is out of proportion to the weights that it is built for."""
    stored = sum(weight.numel() for weight in weights.values())
    with torch.device("cpu"), _Bounded(max(NETWORK_NUMBERS, NUMBERS_PER_WEIGHT * stored)):
        return build_registered(record)


class _Bounded(TorchFunctionMode):
    """A block that may create so many numbers, in a limited number of tensors; ValueError before it takes memory for more."""

    def __init__(self, most: float) -> None:
        super().__init__()
        self.most = most
        self.created = 0
        self.tensors = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _CREATE:
            self.tensors += 1
            if self.tensors > NETWORK_TENSORS:
                raise ValueError(f"the network that it names has more than {NETWORK_TENSORS:,} tensors")
            self.created += func(*args, **{**kwargs, "device": "meta"}).numel()
            if self.created > self.most:
                raise ValueError(
                    f"the network that it names has more than {self.most:,} numbers, for far fewer weights"
                )
        return func(*args, **kwargs)
