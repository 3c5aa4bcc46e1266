"""Channels: sets of channels that go together, found by following labels through a forward pass (labels.py)."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from sparsefw.compression.reasons import Cause, Reason, because
from sparsefw.compression.structure.attention import heads_of, known_attention
from sparsefw.compression.structure.counted_norms import norm_form
from sparsefw.compression.structure.labels import Array, Labels, Tracer
from sparsefw.compression.structure.layers import (
    AnyConv,
    axis_of_channels,
    call_on_copy,
    channel_axis,
    evaluating,
    forward_order,
    hint_at_labels,
    hooks,
    is_layer,
    may_be_of_channels,
    shared_layers,
)
from sparsefw.layer_types import BATCH_NORMS, CONVOLUTIONS, TRANSPOSED
from sparsefw.text import first_line

MIXING_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.LocalResponseNorm)
SEPARATE_NORMS = (*BATCH_NORMS, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)


class Side(StrEnum):
    """Where in a layer channels are."""

    OUT = "out"  # the outputs of a convolution or linear layer
    IN = "in"  # its inputs
    EACH = "each"  # what keeps channels apart: batch norm, depthwise convolution, PReLU, a bare parameter or buffer
    HEADS = "heads"  # the heads of an attention module


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
    groups     the group of each channel: grouped convolutions need the same number of channels in each of their groups
    obstacle   why none of the channels can be removed; None if they can
    """

    sites: tuple[Site, ...]
    groups: tuple[int, ...]
    obstacle: Reason | None = None

    @property
    def count(self) -> int:
        return len(self.groups)

    @property
    def writers(self) -> tuple[Site, ...]:
        return tuple(site for site in self.sites if site.side in (Side.OUT, Side.HEADS))

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


def find_channels(model: nn.Module, example: Any) -> list[Channels]:
    """Return all sets of channels of the model, with and without an obstacle, in the order in which they are written."""
    trace = _Trace()
    try:
        for mode in modes(model, example):
            trace.run(model, example, mode)
    except Exception as error:
        line = first_line(error)
        hint = hint_at_labels(example)
        raise ValueError(f"the model does not run on the example: {type(error).__name__}: {line}{hint}") from error
    found = [*trace.channels(), *_never_called(model, trace.called)]
    vars(trace).clear()  # it refers to itself, and would keep the model in memory until Python looks for such
    return found


Mode = Callable[[nn.Module], AbstractContextManager[None]]


def modes(model: nn.Module, example: Any) -> list[Mode]:
    """Return the modes in which the model must run to call all of its layers: evaluation and, if that skips some, training.

    Auxiliary classifiers read channels that the rest of the network reads too; overlooked, they would not fit afterwards.
    """
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
def as_in_training(model: nn.Module) -> Iterator[None]:
    """Training mode for a copy of a model, without noise: norms use their statistics, and dropout is off."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        model.train()
        for module in model.modules():
            if isinstance(module, (*SEPARATE_NORMS, nn.modules.dropout._DropoutNd)):
                module.eval()
        yield


def _never_called(model: nn.Module, called: set[str]) -> list[Channels]:
    sets = []
    for name, module in model.named_modules():
        if not is_layer(module) or name in called:
            continue
        count = int(module.out_features if isinstance(module, nn.Linear) else module.out_channels)
        sets.append(Channels((outputs_of(name, count),), (0,) * count, because(Cause.NEVER_CALLED)))
    return sets


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


class _Trace:
    """Records which labels every layer reads and writes, per side."""

    def __init__(self) -> None:
        self.labels = Labels()
        self.tracer = Tracer(self.labels, self._bare_labels)
        self.noted: dict[tuple[str, Side], Array] = {}  # (layer, side) -> the label of each position
        self.called: set[str] = set()
        self.modules: dict[str, nn.Module] = {}
        self.bare: dict[
            Tensor, str
        ] = {}  # parameters, and buffers that may be a scale, an offset or a mask of channels
        self.obstacles: dict[str, Reason] = {}  # layer -> why its channels cannot be removed

    def run(self, model: nn.Module, example: Any, mode: Mode) -> None:
        """Follow one forward pass; a second one, in another mode, adds to the first."""
        if mode is not evaluating:  # evaluation changes nothing in the model
            model = copy.deepcopy(model)
        self.modules = dict(model.named_modules())
        self.bare = {p: name for name, p in model.named_parameters()}
        self.bare |= {b: name for name, b in model.named_buffers() if may_be_of_channels(b)}
        self.obstacles = {
            layer: because(Cause.CHANNELS_OF_SHARED_WEIGHT, layer=layer, other=other)
            for layer, other in shared_layers(model).items()
        }
        for name, module in model.named_modules():
            if is_layer(module) and not {n for n, _ in module.named_parameters()} <= {"weight", "bias"}:
                self.obstacles[name] = because(Cause.CHANNELS_OF_COMPUTED_WEIGHT, layer=name)
        with mode(model), hooks(model, self.hooks), self.tracer:
            outputs = tensors_of(call_on_copy(model, example))
        if not outputs:
            raise TypeError("its output contains no tensors")
        self.tracer.fix(outputs, because(Cause.OUTPUT))

    def hooks(self, name: str, module: nn.Module) -> Sequence[Any]:
        rule = self._rule(module)
        if rule is None:
            return ()

        def enter(*_: Any) -> None:
            self.tracer.inside_layers += 1

        def leave(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            self.tracer.inside_layers -= 1
            self.called.add(name)
            if not self.tracer.inside_layers:
                inputs = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
                rule(name, module, inputs, tree_leaves(output)[0])

        return module.register_forward_pre_hook(enter), module.register_forward_hook(leave, with_kwargs=True)

    def _rule(self, module: nn.Module) -> Any:
        if heads_of(module):
            return self._attention
        if is_depthwise(module) or isinstance(module, (*SEPARATE_NORMS, nn.PReLU)) or is_frozen_norm(module):
            return self._each
        if isinstance(module, (*CONVOLUTIONS, *TRANSPOSED, nn.Linear)):
            return self._layer
        if norm_form(module) is not None:
            return self._counted_norm
        if isinstance(module, MIXING_NORMS):
            return self._mixing_norm
        if isinstance(module, nn.Embedding):
            return self._embedding
        if isinstance(module, nn.EmbeddingBag):
            return self._source
        return self._opaque if isinstance(module, (nn.RNNBase, nn.MultiheadAttention, nn.Bilinear)) else None

    def _layer(self, name: str, module: nn.Module, inputs: list[Tensor], output: Tensor) -> None:
        self._read(name, module, inputs[0])
        self._write(name, module, output)

    def _read(self, name: str, module: nn.Module, x: Tensor) -> None:
        labels = self._per_channel(x, channel_axis(module, x), because(Cause.READ_FROM_SEVERAL_PLACES, layer=name))
        if labels is not None:
            self._note(name, Side.IN, labels)

    def _per_channel(self, x: Tensor, axis: int, obstacle: Reason) -> Array | None:
        """Return the label of each channel of a tensor; None if it has no labels.

        Labels that vary along another axis are no channels: they are fixed with the obstacle, and the result is None.
        """
        labels = self.tracer.of(x)
        if labels is None:
            return None
        if any(length > 1 for i, length in enumerate(labels.shape) if i != axis):
            self.labels.fix(labels, obstacle)
            return None
        return np.broadcast_to(labels.ravel(), x.shape[axis])

    def _set_channels(self, x: Tensor, axis: int, labels: Array) -> None:
        """Attach one label per channel to a tensor."""
        self.tracer.set(x, labels.reshape([-1 if i == axis else 1 for i in range(x.ndim)]))

    def _write(self, name: str, module: nn.Module, output: Tensor) -> None:
        axis = channel_axis(module, output)
        labels = self.noted.get((name, Side.OUT))
        if labels is None:  # a layer that is called again writes the same channels again
            labels = self.labels.fresh(output.shape[axis])
        self._note(name, Side.OUT, labels)
        self._set_channels(output, axis, labels)

    def _each(self, name: str, module: nn.Module, inputs: list[Tensor], output: Tensor) -> None:
        axis = channel_axis(module, inputs[0])
        labels = self._per_channel(inputs[0], axis, because(Cause.SEEN_IN_SEVERAL_PLACES, layer=name))
        if labels is None:
            return
        if not (isinstance(module, nn.PReLU) and module.num_parameters == 1):
            self._note(name, Side.EACH, labels)
        times = output.shape[axis] // inputs[0].shape[axis]
        self._set_channels(output, axis, np.repeat(labels, times))

    def _counted_norm(self, name: str, module: nn.Module, inputs: list[Tensor], output: Tensor) -> None:
        form = norm_form(module)
        assert form is not None
        axis = form.axis % output.ndim
        labels = None
        if output.shape[axis] == module.get_parameter("weight").shape[0]:
            labels = self._per_channel(inputs[0], axis, because(Cause.SEEN_IN_SEVERAL_PLACES, layer=name))
        if labels is None:
            return self._mixing_norm(name, module, inputs, output)
        self._note(name, Side.EACH, labels)
        self._set_channels(output, axis, labels)

    def _embedding(self, name: str, module: nn.Module, inputs: list[Tensor], output: Tensor) -> None:
        labels = self.noted.get((name, Side.EACH))
        if labels is None:
            labels = self.labels.fresh(output.shape[-1])
        self._note(name, Side.EACH, labels)
        self._set_channels(output, output.ndim - 1, labels)

    def _mixing_norm(self, name: str, module: nn.Module, inputs: list[Tensor], output: Tensor) -> None:
        seen = self.tracer.of(inputs[0])
        if seen is not None:
            self.labels.fix(seen, because(Cause.AVERAGED_OVER, layer=name, type=type(module).__name__))
            self.tracer.set(output, seen)

    def _attention(self, name: str, module: nn.Module, inputs: list[Tensor], output: Tensor) -> None:
        """Its layers read the channels of its inputs, in this order, and its projection writes channels."""
        attention = known_attention(module)
        readers = [f"{name}.{layer}" for layer in attention.inputs]
        seen = [x for x in inputs if self.tracer.of(x) is not None]
        if len(seen) == 1:
            seen *= len(readers)
        if len(seen) == len(readers):
            for reader, x in zip(readers, seen, strict=True):
                self._read(reader, self.modules[reader], x)
        else:
            self.tracer.fix(seen, because(Cause.READ_BY, layer=name, type="attention"))
        if (name, Side.HEADS) not in self.noted:
            self._note(name, Side.HEADS, self.labels.fresh(heads_of(module)))
        projection = f"{name}.{attention.projection}"
        self._write(projection, self.modules[projection], output)

    def _source(self, name: str, module: nn.Module, inputs: list[Tensor], output: Tensor) -> None:
        labels = self.labels.fresh(1)
        self.labels.fix(labels, because(Cause.WRITTEN_BY, layer=name, type=type(module).__name__))
        self.tracer.set(output, labels.reshape((1,) * output.ndim))

    def _opaque(self, name: str, module: nn.Module, inputs: list[Tensor], output: Tensor) -> None:
        self.tracer.fix(inputs, because(Cause.READ_BY, layer=name, type=type(module).__name__))
        self._source(name, module, inputs, output)

    def _bare_labels(self, tensor: Tensor) -> Array | None:
        """Label a tensor used outside of layers, such as a scale or a mask per channel or a table of positions."""
        name = self.bare.get(tensor)
        axis = axis_of_channels(tensor)
        if name is None or axis is None:
            return None
        labels = self.noted.get((name, Side.EACH))
        if labels is None:
            labels = self.labels.fresh(tensor.shape[axis] if tensor.ndim else 1)
        self._note(name, Side.EACH, labels)
        return labels.reshape([-1 if i == axis else 1 for i in range(tensor.ndim)])

    def _note(self, name: str, side: Side, labels: Array) -> None:
        if name in self.obstacles:
            self.labels.fix(labels, self.obstacles[name])
        if (name, side) in self.noted:  # a layer used twice has the same channels both times
            self.labels.unite(self.noted[name, side], labels)
        self.noted[name, side] = labels

    def channels(self) -> list[Channels]:
        """Return the sets: classes of labels with the same sites, and the same number of slots in each, form one set."""
        noted = list(self.noted)  # below, a site is its place in here: a number is hashed a million times in no time
        positions: dict[int, dict[int, list[int]]] = {}
        for site, labels in enumerate(self.noted.values()):
            for position, label in enumerate(labels.tolist()):
                positions.setdefault(self.labels.find(label), {}).setdefault(site, []).append(position)
        sets: dict[tuple[Any, ...], list[int]] = {}
        for label, at in positions.items():
            sets.setdefault((*at, *map(len, at.values()), self.labels.reason(label)), []).append(label)
        return [self._set(noted, [positions[label] for label in members], key[-1]) for key, members in sets.items()]

    def _set(self, noted: Sequence[Any], members: list[dict[int, list[int]]], reason: Reason | None) -> Channels:
        sites = tuple(Site(*noted[site], tuple(tuple(at[site]) for at in members)) for site in members[0])
        buffers = {name for tensor, name in self.bare.items() if not isinstance(tensor, nn.Parameter)}
        if reason is None and all(site.side == Side.IN or site.layer in buffers for site in sites):
            reason = because(Cause.MEETS_FIXED_SIZE)  # nothing that is trained has these channels
        return Channels(sites, (0,) * len(members), reason)


def with_groups(channels: Channels, model: nn.Module) -> Channels:
    """Return the set with the group of each channel in grouped convolutions; with an obstacle if layers disagree."""
    if channels.obstacle is not None:
        return channels
    common: tuple[int, ...] | None = None
    for site in channels.sites:
        module = model.get_submodule(site.layer) if site.side in (Side.IN, Side.OUT) else None
        if not isinstance(module, AnyConv) or module.groups == 1:
            continue
        width = (module.in_channels if site.side == Side.IN else module.out_channels) // module.groups
        groups = tuple(slots[0] // width for slots in site.slots)
        if any(slot // width != group for slots, group in zip(site.slots, groups, strict=True) for slot in slots):
            return replace(channels, obstacle=because(Cause.IN_SEVERAL_GROUPS, layer=site.layer))
        if len({groups.count(group) for group in range(module.groups)}) > 1:
            return replace(channels, obstacle=because(Cause.UNEQUAL_GROUPS, layer=site.layer))
        if common is not None and common != groups:
            return replace(channels, obstacle=because(Cause.GROUPED_DIFFERENTLY, layer=site.layer))
        common = groups
    return channels if common is None else replace(channels, groups=common)
