"""What `compress` can remove by a kind, as rules for the optimizer: the same sets, found by the same code."""

from __future__ import annotations

import glob
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from sparsefw.compression.artifact.plan import Untouched
from sparsefw.compression.kinds import Stage
from sparsefw.compression.kinds.filters import ChannelStage, kind_of_channels
from sparsefw.compression.pipeline import Pipeline
from sparsefw.compression.settings import Settings
from sparsefw.compression.structure.channels import Channels, Side, Site
from sparsefw.compression.structure.layers import forward_order, is_layer, unwrapped
from sparsefw.geometry import Groups
from sparsefw.kinds import DEFAULT_GAUGE, HEADS, NEURONS, Kind, ball_maker
from sparsefw.layer_types import BATCH_NORMS, CONVOLUTIONS, input_axis, output_axis
from sparsefw.optim import Rule
from sparsefw.optim.region_table import merged_names
from sparsefw.text import listed

_IN_PROJECTION = "out_proj"  # of nn.MultiheadAttention; in the copy that is compressed it is called `proj`


@dataclass(frozen=True)
class Removable:
    """What a rule means under the structure that `compress` cuts.

    rules   one per set of channels, which is a coupled block; or one for all layers of a kind without channels
    left    the layers that cannot lose units, with the reasons
    """

    rules: tuple[Rule, ...]
    left: tuple[Untouched, ...]

    @property
    def lines(self) -> list[str]:
        """A line for every reason why layers cannot lose units, and stay free."""
        layers: dict[str, list[str]] = {}
        for entry in self.left:
            first, *others = entry.layer.split(" + ")  # of a set of channels, all layers that write it
            more = f" + {len(others)} more" if others else ""
            layers.setdefault(entry.reason, []).append(f"{first}{more}")
        return [f"not to be removed: {listed(merged_names(names))}: {reason}" for reason, names in layers.items()]


def removable_units(model: nn.Module, rule: Rule, example: Any, taken: Collection[str] = ()) -> Removable:
    """Return a rule of a kind as rules for exactly the weights whose units `compress` can remove, among those that it matches.

    Args:
        model: the network.
        rule: a rule whose kind is a word.
        example: a batch of inputs, as in `compress`.
        taken: the names of parameters that earlier rules take.

    Raises:
        ValueError: `compress` could remove none of them; or it refuses the model or the example, with its own message.
    """
    kind = rule.named_kind
    assert kind is not None, "the rule has no kind"
    pipeline = Pipeline(model, Settings(example=example))
    stage = pipeline.stage(kind, pipeline.dense)
    rule = replace(rule, of_kind=not rule.names_layers)
    names = _Names(model, pipeline.dense, rule, taken)
    if isinstance(stage, ChannelStage):
        rules = list(_rules_of_channels(names, stage.sets, rule))
    else:
        rules = _rules_of_layers(names, _layers_of(stage, kind, pipeline), rule)
    if not rules:
        if names.frozen:
            raise ValueError(
                f"rule {rule.match!r}: what compress({kind.name}=...) can remove of it is frozen: {listed(names.frozen)}; set "
                "requires_grad=True to train it"
            )
        raise ValueError(f"rule {rule.match!r}: compress({kind.name}=...) can remove nothing that it matches")
    return Removable(tuple(rules), tuple(entry for entry in stage.untouched if not entry.note))


class _Names:
    """Finds the parameters of a model by the layers of the copy that is compressed, in which attention is plain layers.

    frozen  the weights and biases that were asked for and are not trained
    """

    def __init__(self, model: nn.Module, dense: nn.Module, rule: Rule, taken: Collection[str]) -> None:
        self.dense = dense
        self._source = unwrapped(model)
        self._rule = rule
        self._names = {p: name for name, p in model.named_parameters()}
        self._taken = set(taken)
        self.frozen: list[str] = []

    def weight(self, layer: str) -> str | None:
        """Return the name of a layer's weight; None if there is none that is trained, or another rule or set has it."""
        return self._free_name(layer, "weight")

    def bias(self, layer: str) -> str | None:
        return self._free_name(layer, "bias")

    def module(self, layer: str) -> nn.Module:
        """Return the module of the given model in which a layer's weight is stored, for its axes."""
        try:
            return self._source.get_submodule(layer)
        except AttributeError:  # the output projection of nn.MultiheadAttention has another name; its axes are the same
            return self.dense.get_submodule(layer)

    def parameter(self, name: str) -> Tensor:
        return next(p for p, known in self._names.items() if known == name)

    def take(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the names as patterns for a rule; from now on they are taken."""
        taken = tuple(names)
        self._taken |= set(taken)
        return tuple(map(glob.escape, taken))

    def _free_name(self, layer: str, local_name: str) -> str | None:
        parent, _, child = layer.rpartition(".")
        try:
            if isinstance(self._source.get_submodule(parent), nn.MultiheadAttention):
                layer = f"{parent}.{_IN_PROJECTION}" if child == "proj" else layer
            owner = self._source.get_submodule(layer)
        except AttributeError:  # queries, keys and values of nn.MultiheadAttention are no layers
            return None
        parameter = getattr(owner, local_name, None)
        if not isinstance(parameter, nn.Parameter):
            return None
        name = self._names.get(parameter)
        if name is None or name in self._taken or not self._rule.matches(name):
            return None
        if not parameter.requires_grad:
            self.frozen += [name] if name not in self.frozen else []
            return None
        return name


def _layers_of(stage: Stage, kind: Kind, pipeline: Pipeline) -> list[str]:
    """Return the layers that lose units, without the one that writes the output: it has the scale of the targets."""
    last = forward_order(pipeline.dense, pipeline.example)[-1] if kind.leaves_output_free else None
    return [units.name for units in stage.unit_sets if units.name != last]


def _rules_of_layers(names: _Names, layers: Sequence[str], rule: Rule) -> list[Rule]:
    weights = [weight for layer in layers if (weight := names.weight(layer)) is not None]
    types = tuple({type(names.module(layer)): None for layer in layers})
    return [replace(rule, match=names.take(weights), types=types)] if weights else []


def _rules_of_channels(names: _Names, sets: Sequence[Channels], rule: Rule) -> Iterator[Rule]:
    gauge = rule.gauge or DEFAULT_GAUGE
    for channels in sets:
        kind = kind_of_channels(names.dense, channels)
        if kind is HEADS:
            yield from _rules_of_heads(names, channels, replace(rule, gauge=None), gauge)
            continue
        made = replace(rule, kind=ball_maker(kind.view, gauge), gauge=None)
        block = _block(names, channels, kind)
        if block is not None:
            members, readers = block
            patterns = tuple(map(glob.escape, readers))
            yield replace(made, match=names.take(members), coupled=True, readers=patterns)
            continue
        for site in channels.writers:  # channels that are spread over a layer decay filter by filter
            weight = names.weight(site.layer)
            if weight is not None:
                yield replace(made, match=names.take([weight]))


def _rules_of_heads(names: _Names, channels: Channels, rule: Rule, gauge: str) -> Iterator[Rule]:
    """Yield the rule for the columns of the output projection: where those of a head are 0, the head has no effect."""
    for site in channels.readers:
        weight = names.weight(site.layer) if _is_contiguous(site) else None
        if weight is not None:
            view = Groups(axis=input_axis(names.module(site.layer)), width=len(site.slots[0]))
            yield replace(rule, match=names.take([weight]), kind=ball_maker(view, gauge))


def _is_contiguous(site: Site) -> bool:
    """Whether the positions of the first unit come first, then those of the second, equally many of each."""
    positions = [position for slots in site.slots for position in slots]
    return len({len(slots) for slots in site.slots}) == 1 and positions == list(range(len(positions)))


def _block(names: _Names, channels: Channels, kind: Kind) -> tuple[list[str], list[str]] | None:
    """Return the parameters of which row j belongs to channel j, and which of them read it; None if they are no matrix.

    Filters are what writes a channel and scales it: their convolutions and batch norms. Neurons are known by both sides: a small
    neuron is one that is written and read by small weights, and what matters is the product (benchmarks/transformers.py).
    """
    one_each = tuple((i,) for i in range(channels.count))
    if any(site.slots != one_each for site in channels.sites if site.side == Side.OUT):
        return None
    members: list[str] = []
    readers: list[str] = []
    for site in channels.sites:
        module = dict(names.dense.named_modules()).get(site.layer)
        if module is None or site.slots != one_each:
            continue
        reads = site.side == Side.IN
        is_row = isinstance(module, CONVOLUTIONS + BATCH_NORMS) if site.side == Side.EACH else is_layer(module)
        if not is_row or (reads and kind is not NEURONS):
            continue
        weight = names.weight(site.layer)
        stored = names.module(site.layer)
        axis = input_axis(stored) if reads else output_axis(stored)
        # A norm after a concatenation has more rows than the channels of one branch; a grouped layer has fewer columns.
        if weight is None or names.parameter(weight).shape[axis] != channels.count:
            continue
        members.append(weight)
        readers += [weight] if reads else []
        if kind is NEURONS and site.side == Side.OUT and (bias := names.bias(site.layer)) is not None:
            members.append(bias)
    writes = any(names.parameter(name).ndim > 1 for name in members if name not in readers)
    return (members, readers) if writes else None
