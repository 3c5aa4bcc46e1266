"""Channels: what must be removed together, found by following labels through one forward pass (labels.py)."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from sparsefw.compression.structure.attention import heads_of
from sparsefw.compression.structure.labels import Array, Labels, Tracer
from sparsefw.compression.structure.layers import (
    AnyConv,
    call,
    channel_axis,
    evaluating,
    forward_order,
    hooks,
    is_layer,
    shared_layers,
)
from sparsefw.layer_types import BATCH_NORMS, CONVOLUTIONS, TRANSPOSED

# Where in a layer channels live. OUT and IN are the two sides of a convolution or linear layer; EACH is a layer that keeps
# channels apart (batch norm, depthwise convolution, PReLU, a bare parameter); HEADS are the heads of an attention block.
OUT, IN, EACH, HEADS = "out", "in", "each", "heads"
MIXING_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.LocalResponseNorm)
SEPARATE_NORMS = (*BATCH_NORMS, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)


@dataclass(frozen=True)
class Site:
    """One side of one layer; slots[j] are the positions there that belong to channel j."""

    layer: str
    side: str
    slots: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Channels:
    """Channels that can be removed one by one, each from all sites at once.

    blocks[j] is the block of channel j: grouped convolutions need the same number of channels in each of their groups.
    `fixed` says why none of them can be removed; empty where they can.
    """

    sites: tuple[Site, ...]
    blocks: tuple[int, ...]
    fixed: str = ""

    @property
    def count(self) -> int:
        return len(self.blocks)

    @property
    def writers(self) -> tuple[Site, ...]:
        return tuple(site for site in self.sites if site.side in (OUT, HEADS))

    @property
    def readers(self) -> tuple[Site, ...]:
        return tuple(site for site in self.sites if site.side == IN)

    @property
    def name(self) -> str:
        return " + ".join(site.layer for site in self.writers or self.sites[:1])


def is_depthwise(module: nn.Module) -> bool:
    return isinstance(module, AnyConv) and module.groups == module.in_channels and module.groups > 1


def find_channels(model: nn.Module, example: Any) -> list[Channels]:
    """All sets of channels of the model, removable or fixed, in the order in which they are written."""
    trace = _Trace()
    try:
        for mode in modes(model, example):
            trace.run(model, example, mode)
    except Exception as error:
        line = (str(error).strip().splitlines() or [""])[0]
        raise ValueError(f"the model does not run on the example: {type(error).__name__}: {line}") from error
    return [*trace.channels(), *_never_called(model, trace.called)]


Mode = Callable[[nn.Module], AbstractContextManager[None]]


def modes(model: nn.Module, example: Any) -> list[Mode]:
    """How to run the model to see all of its layers: in evaluation and, where that leaves some out, also as in training.

    Auxiliary heads read channels that the rest of the network reads too, and would not fit if they were overlooked.
    """
    called = set(forward_order(model, example))
    if all(name in called for name, module in model.named_modules() if is_layer(module)):
        return [evaluating]
    trial = copy.deepcopy(model)
    try:
        with as_in_training(trial):
            call(trial, example)
    except Exception:  # such as a model that wants targets in training
        return [evaluating]
    return [evaluating, as_in_training]


@contextlib.contextmanager
def as_in_training(model: nn.Module) -> Iterator[None]:
    """Training mode for a copy of a model, but without its noise: norms use their statistics, and dropout nothing."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        model.train()
        for module in model.modules():
            if isinstance(module, (*SEPARATE_NORMS, nn.modules.dropout._DropoutNd)):
                module.eval()
        yield


def _never_called(model: nn.Module, called: set[str]) -> list[Channels]:
    reason = "never called as a layer: unused, or its weight is used directly"
    layers = [(name, m) for name, m in model.named_modules() if is_layer(m) and name not in called]
    counts = {name: int(m.out_features if isinstance(m, nn.Linear) else m.out_channels) for name, m in layers}
    return [Channels((Site(n, OUT, tuple((i,) for i in range(c))),), (0,) * c, reason) for n, c in counts.items()]


def tensors_of(output: Any) -> list[Tensor]:
    """The tensors in what a model returns: nested tuples, lists, mappings and dataclasses of them."""
    found: list[Tensor] = []
    for leaf in tree_leaves(output.to_tuple() if hasattr(output, "to_tuple") else output):
        if isinstance(leaf, Tensor):
            found.append(leaf)
        elif isinstance(leaf, Mapping):
            found += tensors_of(list(leaf.values()))
        elif is_dataclass(leaf) and not isinstance(leaf, type):
            found += tensors_of([getattr(leaf, field.name) for field in fields(leaf)])
    return found


class _Trace:
    """The rules of the layers: which labels they read and write, noted as label -> sites."""

    def __init__(self) -> None:
        self.labels = Labels()
        self.tracer = Tracer(self.labels, self._bare_parameter)
        self.noted: dict[tuple[str, str], Array] = {}  # (layer, side) -> the label of each position
        self.called: set[str] = set()
        self.parameters: dict[nn.Parameter, str] = {}
        self.obstacles: dict[str, str] = {}  # layer -> why its channels cannot be removed

    def run(self, model: nn.Module, example: Any, mode: Mode) -> None:
        """Follow one forward pass; a second one, in another mode, adds to what the first has shown."""
        if mode is not evaluating:  # which changes nothing in the model
            model = copy.deepcopy(model)
        self.parameters = {p: name for name, p in model.named_parameters()}
        self.obstacles = {n: f"{n} shares its weight with {other}" for n, other in shared_layers(model).items()}
        for name, module in model.named_modules():
            if is_layer(module) and not {n for n, _ in module.named_parameters()} <= {"weight", "bias"}:
                self.obstacles[name] = f"{name} computes its weight from other parameters"
        with mode(model), hooks(model, self.hooks), self.tracer:
            outputs = tensors_of(call(model, example))
        if not outputs:
            raise TypeError("no tensors were found in what it returns")
        self.tracer.fix(outputs, "the model's output")

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
        if is_depthwise(module) or isinstance(module, (*SEPARATE_NORMS, nn.PReLU)):
            return self._each
        if isinstance(module, (*CONVOLUTIONS, *TRANSPOSED, nn.Linear)):
            return self._layer
        if isinstance(module, MIXING_NORMS):
            return self._mixing_norm
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            return self._source
        return self._opaque if isinstance(module, (nn.RNNBase, nn.MultiheadAttention, nn.Bilinear)) else None

    def _layer(self, name: str, module: nn.Module, inputs: list[Tensor], output: Tensor) -> None:
        self._read(name, module, inputs[0])
        self._write(name, module, output)

    def _read(self, name: str, module: nn.Module, x: Tensor) -> None:
        axis = channel_axis(module, x)
        seen = self.tracer.of(x)
        if seen is None:
            return
        if any(length > 1 for i, length in enumerate(seen.shape) if i != axis):
            return self.labels.fix(seen, f"{name} reads them from more than one place")
        self._note(name, IN, np.broadcast_to(seen.ravel(), x.shape[axis]))

    def _write(self, name: str, module: nn.Module, output: Tensor) -> None:
        axis = channel_axis(module, output)
        labels = self.noted.get((name, OUT))
        if labels is None:  # a layer that is called again writes the same channels again
            labels = self.labels.fresh(output.shape[axis])
        self._note(name, OUT, labels)
        self.tracer.set(output, labels.reshape([-1 if i == axis else 1 for i in range(output.ndim)]))

    def _each(self, name: str, module: nn.Module, inputs: list[Tensor], output: Tensor) -> None:
        seen, axis = self.tracer.of(inputs[0]), channel_axis(module, inputs[0])
        if seen is None:
            return
        if any(length > 1 for i, length in enumerate(seen.shape) if i != axis):
            return self.labels.fix(seen, f"{name} sees them in more than one place")
        per_channel = np.broadcast_to(seen.ravel(), inputs[0].shape[axis])
        if not (isinstance(module, nn.PReLU) and module.num_parameters == 1):
            self._note(name, EACH, per_channel)
        times = output.shape[axis] // inputs[0].shape[axis]
        self.tracer.set(
            output, np.repeat(per_channel, times).reshape([-1 if i == axis else 1 for i in range(output.ndim)])
        )

    def _mixing_norm(self, name: str, module: nn.Module, inputs: list[Tensor], output: Tensor) -> None:
        seen = self.tracer.of(inputs[0])
        if seen is not None:
            self.labels.fix(seen, f"{name} ({type(module).__name__}) averages over them")
            self.tracer.set(output, seen)

    def _attention(self, name: str, module: nn.Module, inputs: list[Tensor], output: Tensor) -> None:
        for x in inputs:
            seen = self.tracer.of(x)
            if seen is not None:
                self.labels.fix(seen, f"{name} (attention) reads them")
        if (name, HEADS) not in self.noted:
            self._note(name, HEADS, self.labels.fresh(heads_of(module)))
        written = self.labels.fresh(1)
        self.labels.fix(written, f"{name} (attention) writes them")
        self.tracer.set(output, written.reshape((1,) * output.ndim))

    def _source(self, name: str, module: nn.Module, inputs: list[Tensor], output: Tensor) -> None:
        labels = self.labels.fresh(1)
        self.labels.fix(labels, f"{name} ({type(module).__name__}) writes them")
        self.tracer.set(output, labels.reshape((1,) * output.ndim))

    def _opaque(self, name: str, module: nn.Module, inputs: list[Tensor], output: Tensor) -> None:
        self.tracer.fix(inputs, f"{name} ({type(module).__name__}) reads them")
        self._source(name, module, inputs, output)

    def _bare_parameter(self, parameter: nn.Parameter) -> Array | None:
        """A parameter used outside of a layer, such as a per-channel scale: removable along its only axis longer than 1."""
        name = self.parameters.get(parameter)
        long = [axis for axis, length in enumerate(parameter.shape) if length > 1]
        if name is None or len(long) > 1:
            return None
        labels = self.labels.fresh(parameter.numel())
        self._note(name, EACH, labels)
        return labels.reshape(parameter.shape)

    def _note(self, name: str, side: str, labels: Array) -> None:
        if name in self.obstacles:
            self.labels.fix(labels, self.obstacles[name])
        if (name, side) in self.noted:  # a layer used twice: both times the same channels
            self.labels.unite(self.noted[name, side], labels)
        self.noted[name, side] = labels

    def channels(self) -> list[Channels]:
        """Label classes with the same sites, and as many slots in each, form one set of channels."""
        positions: dict[int, dict[tuple[str, str], list[int]]] = {}
        for site, labels in self.noted.items():
            for position, label in enumerate(labels.tolist()):
                positions.setdefault(self.labels.find(label), {}).setdefault(site, []).append(position)
        sets: dict[tuple[Any, ...], list[int]] = {}
        for label, at in positions.items():
            signature = (tuple((site, len(slots)) for site, slots in at.items()), self.labels.reason(label))
            sets.setdefault(signature, []).append(label)
        return [self._set([positions[label] for label in members], signature[1]) for signature, members in sets.items()]

    def _set(self, members: list[dict[tuple[str, str], list[int]]], reason: str) -> Channels:
        sites = tuple(Site(layer, side, tuple(tuple(at[layer, side]) for at in members)) for layer, side in members[0])
        return Channels(sites, (0,) * len(members), reason)


def with_blocks(channels: Channels, model: nn.Module) -> Channels:
    """Channels of grouped convolutions, told which group each belongs to; fixed where several layers disagree."""
    if channels.fixed:
        return channels
    blocks: tuple[int, ...] | None = None
    for site in channels.sites:
        module = model.get_submodule(site.layer) if site.side in (IN, OUT) else None
        if not isinstance(module, AnyConv) or module.groups == 1:
            continue
        width = (module.in_channels if site.side == IN else module.out_channels) // module.groups
        own = tuple(slots[0] // width for slots in site.slots)
        if any(slot // width != block for slots, block in zip(site.slots, own, strict=True) for slot in slots):
            return replace(channels, fixed=f"one channel lies in several groups of {site.layer}")
        if len({own.count(group) for group in range(module.groups)}) > 1:
            return replace(channels, fixed=f"they fill the groups of {site.layer} unequally")
        if blocks is not None and blocks != own:
            return replace(channels, fixed=f"{site.layer} groups them otherwise than another layer")
        blocks = own
    return channels if blocks is None else replace(channels, blocks=blocks)
