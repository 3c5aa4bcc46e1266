"""The trace of a network: which labels (labels.py) every layer reads and writes, and the sets of channels that they make."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from sparsefw.compression.reasons import Cause, Reason, because
from sparsefw.compression.structure.balance import joined
from sparsefw.compression.structure.channels import (
    MIXING_NORMS,
    SEPARATE_NORMS,
    Channels,
    Mode,
    Side,
    Site,
    explaining_errors,
    is_depthwise,
    is_frozen_norm,
    modes,
    outputs_of,
    tensors_of,
)
from sparsefw.compression.structure.counted_norms import norm_form
from sparsefw.compression.structure.labels import NEUTRAL, Array, Labels, Parts, Tracer, slots_of, varying
from sparsefw.compression.structure.layers import (
    call_on_copy,
    channel_axis,
    evaluating,
    hooks,
    is_layer,
    shared_layers,
)
from sparsefw.compression.structure.notes import Notes
from sparsefw.compression.structure.numbers import numbers_in
from sparsefw.compression.structure.operations import RULES, unknown
from sparsefw.compression.structure.parameters import Parameters
from sparsefw.compression.structure.ties import Axis, shared_axes
from sparsefw.layer_types import CONVOLUTIONS, TRANSPOSED


def find_channels(model: nn.Module, example: Any, in_modes: Sequence[Mode] = ()) -> list[Channels]:
    """Return all sets of channels of the model, with and without an obstacle, in the order in which they are written.

    Args:
        model: The network.
        example: Its input.
        in_modes: The modes in which it must run (channels.modes); none: they are found.
    """
    trace = _Trace()
    for mode in in_modes or modes(model, example):
        with explaining_errors(example):
            trace.run(model, example, mode)
    found = [*trace.channels(), *_never_called(model, trace.called)]
    vars(trace).clear()  # it refers to itself, and would keep the model in memory until Python looks for such
    return found


class _Trace:
    """Records which labels every layer reads and writes, per side."""

    def __init__(self) -> None:
        self.labels = Labels()
        self.notes = Notes(self.labels)
        self.parameters = Parameters(self.notes)
        self.tracer = Tracer(self.labels, self.parameters, RULES, unknown)
        self.tracer.numbers_of_code = self._numbers_of_code
        self.running: list[str] = []  # the modules whose code runs, the innermost last
        self.called = self.notes.called
        self.modules: dict[str, nn.Module] = {}
        self.shared: dict[Axis, list[tuple[str, Side]]] = {}  # axes of shared parameters -> the sides that count them
        self.owners: dict[str, str] = {}  # module -> another that shares a parameter with it

    def run(self, model: nn.Module, example: Any, mode: Mode) -> None:
        """Follow one forward pass; a second one, in another mode, adds to the first."""
        if mode is not evaluating:  # evaluation changes nothing in the model
            model = copy.deepcopy(model)
        self.modules = dict(model.named_modules())
        self.parameters.enter(model)
        self.shared = shared_axes(model)
        self.owners = shared_layers(model)
        self.notes.obstacles = {}
        for name, module in model.named_modules():
            if is_layer(module) and not {n for n, _ in module.named_parameters()} <= {"weight", "bias"}:
                self.notes.obstacles[name] = because(Cause.CHANNELS_OF_COMPUTED_WEIGHT, layer=name)
        with mode(model), hooks(model, self.hooks), self.tracer:
            outputs = tensors_of(call_on_copy(model, example))
        if not outputs:
            raise TypeError("its output contains no tensors")
        self.tracer.fix(outputs, because(Cause.OUTPUT))

    def hooks(self, name: str, module: nn.Module) -> Sequence[Any]:
        rule = self._rule(module)
        if rule is None:
            return self._followed(name, module)

        def enter(*_: Any) -> None:
            self.tracer.inside_layers += 1

        def leave(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            self.tracer.inside_layers -= 1
            self.called.add(name)
            if not self.tracer.inside_layers:
                inputs = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
                rule(name, module, inputs, tree_leaves(output)[0])

        return module.register_forward_pre_hook(enter), module.register_forward_hook(leave, with_kwargs=True)

    def _followed(self, name: str, module: nn.Module) -> Sequence[Any]:
        """Return hooks that note while the code of a module runs, whose numbers may tell how many channels there are."""

        def enter(*_: Any) -> None:
            self.running.append(name)

        def leave(*_: Any) -> None:
            self.running.pop()

        return module.register_forward_pre_hook(enter), module.register_forward_hook(leave)

    def _numbers_of_code(self, value: int, last: bool | None) -> list[tuple[str, str]]:
        """Return the names of modules and numbers for a length: those of the innermost running module that has some."""
        for name in self.running[:-4:-1]:
            names = numbers_in(self.modules[name], value, last)
            if names:
                return [(name, attribute) for attribute in names]
        return []

    def _rule(self, module: nn.Module) -> Any:
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
        seen = self.tracer.of(inputs[0])
        if seen is not None and output.ndim == inputs[0].ndim and _is_apart(module, inputs[0], seen):
            return self._mix_positions(name, module, seen, output)
        self._read(name, module, inputs[0])
        self._write(name, module, output)

    def _mix_positions(self, name: str, module: nn.Module, seen: Array, output: Tensor) -> None:
        """A layer over positions, such as tokens, computes the same for every channel, which stays where it is."""
        positions = self.labels.fresh(output.shape[channel_axis(module, output)])
        self.labels.fix(positions, because(Cause.MIXES_POSITIONS, layer=name))
        self.notes.add(name, Side.OUT, positions)
        self.tracer.set(output, seen)

    def _read(self, name: str, module: nn.Module, x: Tensor) -> None:
        axis = channel_axis(module, x)
        labels = self.tracer.of(x)
        over_window = labels is not None and any(i > axis for i in varying(labels))
        cause = Cause.SEES_NEIGHBOURS if over_window else Cause.READ_FROM_SEVERAL_PLACES
        labels = self._per_channel(x, axis, because(cause, layer=name))
        if labels is not None:
            self.notes.add(name, Side.IN, labels)

    def _per_channel(self, x: Tensor, axis: int, obstacle: Reason) -> Array | None:
        """Return the label of each channel of a tensor; None if it has no labels.

        Labels that vary along another axis are no channels: they are fixed with the obstacle, and the result is None.
        """
        labels = self.tracer.of(x)
        if labels is None:
            return None
        if any(i != axis for i in varying(labels)):
            self.labels.fix(labels, obstacle)
            return None
        return np.broadcast_to(labels.ravel(), x.shape[axis])

    def _set_channels(self, x: Tensor, axis: int, labels: Array) -> None:
        """Attach one label per channel to a tensor."""
        self.tracer.set(x, labels.reshape([-1 if i == axis else 1 for i in range(x.ndim)]))

    def _write(self, name: str, module: nn.Module, output: Tensor) -> None:
        axis = channel_axis(module, output)
        labels = self.notes.of.get((name, Side.OUT))
        if labels is None:  # a layer that is called again writes the same channels again
            labels = self.labels.fresh(output.shape[axis])
        self.notes.add(name, Side.OUT, labels)
        self._set_channels(output, axis, labels)

    def _each(self, name: str, module: nn.Module, inputs: list[Tensor], output: Tensor) -> None:
        axis = channel_axis(module, inputs[0])
        labels = self._per_channel(inputs[0], axis, because(Cause.SEEN_IN_SEVERAL_PLACES, layer=name))
        if labels is None:
            return
        if not (isinstance(module, nn.PReLU) and module.num_parameters == 1):
            self.notes.add(name, Side.EACH, labels)
        times = output.shape[axis] // inputs[0].shape[axis]
        self._set_channels(output, axis, np.repeat(labels, times))

    def _counted_norm(self, name: str, module: nn.Module, inputs: list[Tensor], output: Tensor) -> None:
        form = norm_form(module)
        assert form is not None
        axis = form.axis % output.ndim
        labels = self.tracer.of(inputs[0])
        if labels is None:
            return
        if output.shape[axis] != module.get_parameter("weight").shape[0] or any(i != axis for i in varying(labels)):
            return self._mixing_norm(name, module, inputs, output)
        of_channels = np.broadcast_to(labels.ravel(), output.shape[axis])
        self.notes.add(name, Side.EACH, of_channels)
        if form.groups > 1:
            part = np.repeat(np.arange(form.groups), len(of_channels) // form.groups)
            reason = because(Cause.UNEQUAL_GROUPS, layer=name)
            self.tracer.parts.append(Parts(of_channels, part, reason))
        self._set_channels(output, axis, of_channels)

    def _embedding(self, name: str, module: nn.Module, inputs: list[Tensor], output: Tensor) -> None:
        labels = self.notes.of.get((name, Side.EACH))
        if labels is None:
            labels = self.labels.fresh(output.shape[-1])
        self.notes.add(name, Side.EACH, labels)
        self._set_channels(output, output.ndim - 1, labels)

    def _mixing_norm(self, name: str, module: nn.Module, inputs: list[Tensor], output: Tensor) -> None:
        """Mix what the norm averages over: all channels, or those of a head."""
        seen = self.tracer.of(inputs[0])
        if seen is not None:
            axes = range(1, seen.ndim)
            if isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
                axes = range(seen.ndim - len(module.normalized_shape), seen.ndim)
            elif norm_form(module) is not None:
                axes = range(seen.ndim - 1, seen.ndim)
            reason = because(Cause.AVERAGED_OVER, layer=name, type=type(module).__name__)
            self.tracer.set(output, self.tracer.tie(seen, axes, reason))

    def _source(self, name: str, module: nn.Module, inputs: list[Tensor], output: Tensor) -> None:
        labels = self.labels.fresh(1)
        self.labels.fix(labels, because(Cause.WRITTEN_BY, layer=name, type=type(module).__name__))
        self.tracer.set(output, labels.reshape((1,) * output.ndim))

    def _opaque(self, name: str, module: nn.Module, inputs: list[Tensor], output: Tensor) -> None:
        self.tracer.fix(inputs, because(Cause.READ_BY, layer=name, type=type(module).__name__))
        self._source(name, module, inputs, output)

    def _tie_shared(self) -> None:
        """Make labels of an axis of a shared parameter equal; a layer that was not called is cut along with the others.

        Layers that count an axis otherwise, such as grouped convolutions, keep the channels of all.
        """
        counted = {layer for sites in self.shared.values() for layer, _ in sites}
        for sites in self.shared.values():
            known = [self.notes.of[site] for site in sites if site in self.notes.of]
            for labels in known[1:]:
                self.labels.unite(known[0], labels)
            for site in sites if known else []:
                self.notes.of.setdefault(site, known[0])
        for (name, _), labels in self.notes.of.items():
            other = self.owners.get(name)
            if other is not None and not {name, other} <= counted:
                self.labels.fix(labels, because(Cause.CHANNELS_OF_SHARED_WEIGHT, layer=name, other=other))

    def channels(self) -> list[Channels]:
        """Return the sets: classes of labels with the same sites, and the same number of slots in each, form one set."""
        self._tie_shared()
        self.parameters.judge_uses()
        self.parameters.judge_tables()
        self.tracer.judge_mixtures(
            labels for (_, side), labels in self.notes.of.items() if side in (Side.IN, Side.EACH)
        )
        self.tracer.judge_grids()
        self._tie_counted()
        found = self._sets()
        unbalanced = {channels.obstacle for channels in found if channels.obstacle is not None}
        tied = [self._tie_parts(parts) for parts in self.tracer.parts if parts.reason in unbalanced]
        return self._sets() if any(tied) else found

    def _tie_parts(self, parts: Parts) -> bool:
        """Make channels at the same place of equal parts go together, where no choice would balance the parts; return whether.

        What several layers take apart into different parts is balanced if all that has the same place goes.
        """
        count = int(parts.part.max()) + 1
        if parts.reason.cause is not Cause.UNEQUAL_PARTS or len(parts.labels) % count:
            return False
        by_part = parts.labels.reshape(count, -1)
        self.labels.unite(by_part, by_part[:1])
        return True

    def _sets(self) -> list[Channels]:
        """Return the sets as the labels are now."""
        noted = [*self.notes.of.items(), *self._counted_numbers().items()]
        of_noted = [self.labels.classes(labels).ravel() for _, labels in noted]
        classes = np.concatenate([np.empty(0, dtype=np.int64), *of_noted])
        place = np.repeat(np.arange(len(noted)), [len(line) for line in of_noted])
        position = np.concatenate([np.empty(0, dtype=np.int64), *(np.arange(len(line)) for line in of_noted)])
        heads = {int(label) for line in self.tracer.heads for label in np.unique(self.labels.classes(line))}
        sets: dict[tuple[bytes, Reason | None, bool], list[Array]] = {}
        for entries in _entries_by_class(classes):
            label = int(classes[entries[0]])
            key = place[entries].tobytes(), self.labels.reason(label), label in heads
            sets.setdefault(key, []).append(entries)
        sites = [site for site, _ in noted]
        single = [(i,) for i in range(int(position.max(initial=0)) + 1)]
        channels = []
        for (_, reason, is_heads), members in sets.items():
            slots = position[np.stack(members)]
            places = place[members[0]]
            of_set = [Site(*sites[int(i)], slots=_slots(slots[:, places == i], single)) for i in np.unique(places)]
            channels.append(self._set(of_set, reason, is_heads))
        labels = [[int(classes[entries[0]]) for entries in members] for members in sets.values()]
        parts = [(self.labels.classes(labels).tolist(), part.tolist(), why) for labels, part, why in self.tracer.parts]
        return joined(channels, labels, parts)

    def _tie_counted(self) -> None:
        """Make channels go together whose number is one attribute of a module, as queries and values of a single head."""
        first: dict[tuple[str, str], Array] = {}
        for number in self.tracer.numbers:
            classes = np.array(slots_of(number, self.labels))
            if len(set(classes.tolist())) < max(2, len(classes)):
                continue
            known = first.setdefault((number.module, number.attribute), classes)
            if len(known) == len(classes) and not set(known.tolist()) & set(classes.tolist()):
                self.labels.unite(known, classes)

    def _counted_numbers(self) -> dict[tuple[str, Side], Array]:
        """Map the numbers of modules to the classes at the positions that they count; the first use of a number decides."""
        counted: dict[tuple[str, Side], Array] = {}
        for number in self.tracer.numbers:
            classes = slots_of(number, self.labels)
            if classes:
                counted.setdefault((f"{number.module}.{number.attribute}".lstrip("."), Side.COUNT), np.array(classes))
        return counted

    def _set(self, sites: Sequence[Site], reason: Reason | None, is_heads: bool) -> Channels:
        buffers = {name for tensor, name in self.parameters.names.items() if not isinstance(tensor, nn.Parameter)}
        if reason is None and all(site.side in (Side.IN, Side.COUNT) or site.layer in buffers for site in sites):
            reason = because(Cause.NOTHING_TRAINED)  # nothing that is trained has these channels
        return Channels(tuple(sites), (0,) * len(sites[0].slots), reason, is_heads)


def _entries_by_class(classes: Array) -> list[Array]:
    """Return where each class of labels is, in the order of the first places; what is neutral is left out."""
    order = np.argsort(classes, kind="stable")
    order = order[classes[order] != NEUTRAL]
    bounds = np.flatnonzero(np.diff(classes[order])) + 1
    return sorted(np.split(order, bounds), key=lambda entries: int(entries[0])) if len(order) else []


def _slots(positions: Array, single: Sequence[tuple[int]]) -> tuple[tuple[int, ...], ...]:
    """Return a row of positions per channel as tuples; those of one position are taken from these, so that there are few."""
    if positions.shape[1] == 1:
        return tuple(single[i] for i in positions[:, 0].tolist())
    return tuple(map(tuple, positions.tolist()))


def _is_apart(module: nn.Module, x: Tensor, labels: Array) -> bool:
    """Return whether a layer sees channels along an axis that it computes the same for every entry of."""
    axis = channel_axis(module, x)
    window = getattr(module, "kernel_size", ())
    along = [i for i in varying(labels) if i != axis]
    is_point = all(i < axis or window[i - axis - 1] == 1 for i in along)
    return bool(along) and labels.shape[axis] == 1 and is_point


def _never_called(model: nn.Module, called: set[str]) -> list[Channels]:
    sets = []
    for name, module in model.named_modules():
        if not is_layer(module) or name in called:
            continue
        count = int(module.out_features if isinstance(module, nn.Linear) else module.out_channels)
        sets.append(Channels((outputs_of(name, count),), (0,) * count, because(Cause.NEVER_CALLED)))
    return sets
