"""Channels: sets of channels that go together. The trace of a forward pass finds them (trace.py)."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from sparsefw.compression.reasons import Reason
from sparsefw.compression.structure.counted_norms import norm_form
from sparsefw.compression.structure.layers import (
    AnyConv,
    call_on_copy,
    evaluating,
    forward_order,
    hint_at_labels,
    is_layer,
)
from sparsefw.layer_types import BATCH_NORMS
from sparsefw.text import first_line

MIXING_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.LocalResponseNorm)
SEPARATE_NORMS = (*BATCH_NORMS, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)


class Side(StrEnum):
    """Where in a layer channels are."""

    OUT = "out"  # the outputs of a convolution or linear layer
    IN = "in"  # its inputs
    EACH = "each"  # what keeps channels apart: batch norm, depthwise convolution, PReLU, a bare parameter or buffer
    ROWS = "rows"  # the first axis of a bare parameter, such as a table of biases for every head
    PLANES = "planes"  # the second axis of a bare parameter of three axes or more, such as positions in an image
    COUNT = "count"  # a number of a module, by which its code lays out channels (numbers.py)


BARE_SIDES = (Side.EACH, Side.ROWS, Side.PLANES)  # of parameters and buffers outside of layers


@dataclass(frozen=True)
class Site:
    """One side of one layer; slots[j] are the positions there that belong to channel j."""

    layer: str
    side: Side
    slots: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Channels:
    """Channels that appear at the same sites; removing one removes it from all of them.

    sites      every side of a layer at which the channels appear
    groups     the group of each channel: every group loses the same number, as grouped convolutions need it
    obstacle   why none of the channels can be removed; None if they can
    is_heads   whether they are heads of attention: each is several channels of a layer
    leaves_constant   whether a function behind them maps 0 to another number: silencing them means that nothing reads them
    reaches_norms   whether norms over channels see that number: silencing them means that these norms count it as 0
    """

    sites: tuple[Site, ...]
    groups: tuple[int, ...]
    obstacle: Reason | None = None
    is_heads: bool = False
    leaves_constant: bool = False
    reaches_norms: bool = False

    @property
    def count(self) -> int:
        return len(self.groups)

    @property
    def writers(self) -> tuple[Site, ...]:
        return tuple(site for site in self.sites if site.side == Side.OUT)

    @property
    def readers(self) -> tuple[Site, ...]:
        return tuple(site for site in self.sites if site.side == Side.IN)

    @property
    def name(self) -> str:
        return " + ".join(site.layer for site in self.writers or self.sites[:1])


def is_frozen_norm(module: nn.Module) -> bool:
    """Return whether it is a batch norm whose numbers are all buffers, as in torchvision's detectors and DETR."""
    buffers = {name for name, _ in module.named_buffers(recurse=False)}
    numbers = {"weight", "bias", "running_mean", "running_var"}
    return numbers <= buffers and not any(True for _ in module.parameters()) and "norm" in type(module).__name__.lower()


def is_norm_of_channels(module: nn.Module) -> bool:
    """Return whether it is a norm that loses channels: one of each channel by itself, or one over all channels."""
    return isinstance(module, SEPARATE_NORMS) or is_frozen_norm(module) or norm_form(module) is not None


def is_depthwise(module: nn.Module) -> bool:
    return isinstance(module, AnyConv) and module.groups == module.in_channels and module.groups > 1


Mode = Callable[[nn.Module], AbstractContextManager[None]]


def modes(model: nn.Module, example: Any) -> list[Mode]:
    """Return the modes in which the model must run to call all of its layers: evaluation and, if that skips some, training.

    Auxiliary classifiers read channels that the rest of the network reads too; overlooked, they would not fit afterwards.
    """
    with explaining_errors(example):
        called = set(forward_order(model, example))
    if all(name in called for name, module in model.named_modules() if is_layer(module)):
        return [evaluating]
    trial = copy.deepcopy(model)
    try:
        with as_in_training(trial):
            call_on_copy(trial, example)
    except Exception:  # such as a model that needs targets in training
        return [evaluating]
    return [evaluating, as_in_training]


@contextlib.contextmanager
def explaining_errors(example: Any) -> Iterator[None]:
    """Say in one line, as a ValueError, that a model does not run on the example."""
    try:
        yield
    except Exception as error:
        line = f"{type(error).__name__}: {first_line(error)}{hint_at_labels(example)}"
        raise ValueError(f"the model does not run on the example: {line}") from error


@contextlib.contextmanager
def as_in_training(model: nn.Module) -> Iterator[None]:
    """Training mode for a copy of a model, without noise: norms use their statistics, and dropout is off."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        model.train()
        for module in model.modules():
            if isinstance(module, (*SEPARATE_NORMS, nn.modules.dropout._DropoutNd)):
                module.eval()
        yield


def outputs_of(layer: str, count: int) -> Site:
    """Return the outputs of a layer as a site with one channel per output."""
    return Site(layer, Side.OUT, tuple((i,) for i in range(count)))


def tensors_of(output: Any) -> list[Tensor]:
    """Return the tensors in a model's output: nested tuples, lists, mappings and dataclasses of them."""
    tensors: list[Tensor] = []
    for leaf in tree_leaves(output.to_tuple() if hasattr(output, "to_tuple") else output):
        if isinstance(leaf, Tensor):
            tensors.append(leaf)
        elif isinstance(leaf, Mapping):
            tensors += tensors_of(list(leaf.values()))
        elif is_dataclass(leaf) and not isinstance(leaf, type):
            tensors += tensors_of([getattr(leaf, field.name) for field in fields(leaf)])
    return tensors
