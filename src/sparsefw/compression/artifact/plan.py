"""A plan: the edits of every layer as data. Applied to the dense model's architecture, it gives the small one's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar

import torch
from torch import nn

from sparsefw.compression.reasons import Cause, Reason
from sparsefw.compression.structure import computed, factorisation, layers, masks, stand_ins, surgery
from sparsefw.compression.structure.attention import PlainAttention, plain_attention, unfuse
from sparsefw.compression.structure.channels import Side
from sparsefw.compression.structure.ties import kept_tied
from sparsefw.geometry.cuts import largest_masks
from sparsefw.scalars import is_int
from sparsefw.text import listed


class Edit(ABC):
    """One change of one layer."""

    layer: str
    word: ClassVar[str]
    prepares: ClassVar[bool] = False  # it only makes the dense model one of plain layers, which computes the same

    @abstractmethod
    def __str__(self) -> str:
        """Describe the edit in a line."""

    @abstractmethod
    def apply(self, model: nn.Module) -> None:
        """Apply the edit to the dense model, in place, weights included."""

    def reshape(self, model: nn.Module) -> None:
        """Change the architecture only, in place, on any device including meta; weights are loaded later."""


@dataclass(frozen=True)
class Unfuse(Edit):
    """An nn.MultiheadAttention becomes four linear layers that compute the same."""

    layer: str
    word: ClassVar[str] = "unfuse"
    prepares: ClassVar[bool] = True

    def apply(self, model: nn.Module) -> None:
        if not isinstance(model.get_submodule(self.layer), PlainAttention):  # already replaced under another name
            unfuse(model, self.layer)

    reshape = apply

    def __str__(self) -> str:
        return f"{self.layer}: four linear layers"


@dataclass(frozen=True)
class Bake(Edit):
    """A tensor that a parametrization or a hook computes from others becomes an ordinary parameter.

    shape     of the tensor
    same_as   the name of the earlier tensor that it is one with, where both were computed alike from one parameter; or empty
    """

    layer: str
    tensor: str
    shape: tuple[int, ...]
    same_as: str = ""
    word: ClassVar[str] = "bake"
    prepares: ClassVar[bool] = True

    def apply(self, model: nn.Module) -> None:
        module = model.get_submodule(self.layer)
        is_trained = any(source.requires_grad for source in computed.sources_of(module, self.tensor))
        value = computed.value_of(module, self.tensor)
        self._store(model, nn.Parameter(value, requires_grad=is_trained))

    def reshape(self, model: nn.Module) -> None:
        dtype = next(model.get_submodule(self.layer).parameters()).dtype
        self._store(model, computed.placeholder(self.shape, dtype))

    def _store(self, model: nn.Module, value: nn.Parameter) -> None:
        shared = model.get_parameter(self.same_as) if self.same_as else value
        computed.store(model.get_submodule(self.layer), self.tensor, shared)

    def __str__(self) -> str:
        return f"{self.layer}: its {self.tensor} is stored instead of computed"


@dataclass(frozen=True)
class Replace(Edit):
    """A module that computes its weight by code of its own becomes a plain layer.

    type      the class of the layer; shape is that of its weight, and the others are as in that class
    product   which convolution or matrix product in the module has the weight
    sample    the shape of an input
    """

    layer: str
    type: str
    shape: tuple[int, ...]
    biased: int
    groups: int
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    output_padding: tuple[int, ...]
    padding_mode: str
    product: int
    sample: tuple[int, ...]
    word: ClassVar[str] = "replace"
    prepares: ClassVar[bool] = True

    @classmethod
    def by(cls, layer: str, found: stand_ins.Found) -> Replace:
        return cls(layer, **vars(found.form), product=found.product, sample=found.sample)

    @property
    def form(self) -> stand_ins.Form:
        return stand_ins.Form(**{f.name: getattr(self, f.name) for f in fields(stand_ins.Form)})

    def apply(self, model: nn.Module) -> None:
        old = model.get_submodule(self.layer)
        layers.replace_everywhere(model, old, stand_ins.filled(old, self.form, self.product, self.sample))

    def reshape(self, model: nn.Module) -> None:
        old = model.get_submodule(self.layer)
        new = self.form.build(next(old.parameters()).dtype, "meta").train(old.training)
        layers.replace_everywhere(model, old, new)

    def __str__(self) -> str:
        return f"{self.layer}: a plain {self.type}"


@dataclass(frozen=True)
class Keep(Edit):
    """A layer keeps these channels on one side."""

    layer: str
    side: str
    kept: tuple[int, ...]
    word: ClassVar[str] = "keep"

    def apply(self, model: nn.Module) -> None:
        surgery.keep(model, self.layer, self.side, self.kept)

    reshape = apply

    def __str__(self) -> str:
        if self.side == Side.COUNT:
            return f"{self.layer} = {len(self.kept)}"
        channels = f" {self.side} channels" if self.side in (Side.IN, Side.OUT) else ""
        return f"{self.layer}: keeps {len(self.kept)}{channels}"


@dataclass(frozen=True)
class Split(Edit):
    """A layer becomes two, with `rank` channels (per group) between them."""

    layer: str
    rank: int
    word: ClassVar[str] = "split"

    def apply(self, model: nn.Module) -> None:
        layers.replace_module(model, self.layer, factorisation.split(model.get_submodule(self.layer), self.rank))

    def reshape(self, model: nn.Module) -> None:
        layers.replace_module(
            model,
            self.layer,
            factorisation.Factors(*factorisation.empty_pair(model.get_submodule(self.layer), self.rank)),
        )

    def __str__(self) -> str:
        return f"{self.layer}: two layers of rank {self.rank}"


@dataclass(frozen=True)
class Zero(Edit):
    """Filters of a layer are 0; the architecture stays (masked)."""

    layer: str
    filters: tuple[int, ...]
    word: ClassVar[str] = "zero"

    def apply(self, model: nn.Module) -> None:
        surgery.zero_filters(model.get_submodule(self.layer), self.filters)

    def __str__(self) -> str:
        return f"{self.layer}: {len(self.filters)} filters zeroed"


@dataclass(frozen=True)
class Mute(Edit):
    """A layer reads nothing from these inputs, such as those of heads; the architecture stays (masked)."""

    layer: str
    inputs: tuple[int, ...]
    word: ClassVar[str] = "mute"

    def apply(self, model: nn.Module) -> None:
        surgery.zero_inputs(model.get_submodule(self.layer), self.inputs)

    def __str__(self) -> str:
        return f"{self.layer}: {len(self.inputs)} inputs are not read"


@dataclass(frozen=True)
class Truncate(Edit):
    """A layer's weight gets this rank but stays one layer, because two would not be smaller."""

    layer: str
    rank: int
    word: ClassVar[str] = "truncate"

    def apply(self, model: nn.Module) -> None:
        layer = model.get_submodule(self.layer)
        layers.set_weight(layer, factorisation.truncate(layers.as_matrices(layer), self.rank))

    def __str__(self) -> str:
        return f"{self.layer}: rank {self.rank} in one layer (two would not be smaller)"


@dataclass(frozen=True)
class Thin(Edit):
    """All but the `nonzero` largest of a layer's weights are 0; with a pattern, all but the n largest of every m inputs."""

    layer: str
    nonzero: int
    of: int
    pattern: tuple[int, ...] = ()
    word: ClassVar[str] = "thin"

    def apply(self, model: nn.Module) -> None:
        layer = model.get_submodule(self.layer)
        weight = layers.weight_of(layer)
        if self.pattern:
            mask = masks.n_m_mask(layer, *self.pattern)
        else:
            (mask,) = largest_masks([weight], self.nonzero)
        with torch.no_grad():
            weight.mul_(mask)

    def __str__(self) -> str:
        return f"{self.layer}: {self.nonzero} of {self.of} weights nonzero"


EDITS: dict[str, type[Edit]] = {
    edit.word: edit for edit in (Bake, Replace, Unfuse, Keep, Split, Zero, Mute, Truncate, Thin)
}


@dataclass(frozen=True)
class Untouched:
    """A layer that was left as it is, and why; or a note about a layer that was compressed.

    reason   the text for people, and all that a file holds
    cause    the type that code branches on; None if it was read from a file
    """

    layer: str
    reason: str
    note: bool = False
    cause: Cause | None = field(default=None, compare=False)

    @classmethod
    def because(cls, layer: str, reason: Reason) -> Untouched:
        return cls(layer, reason.text, reason.cause.is_note, reason.cause)

    def to_json(self) -> dict[str, Any]:
        return {"layer": self.layer, "reason": self.reason, "note": self.note}


def in_words(untouched: Iterable[Untouched], shown: int = 3) -> list[str]:
    """Return a line for every reason, with the first layers that it holds for."""
    groups: dict[tuple[bool, str], list[str]] = {}
    for entry in untouched:
        groups.setdefault((entry.note, entry.reason), []).append(entry.layer)
    lines = []
    for (note, reason), names in groups.items():
        heading = "note" if note else "left as it is"
        lines.append(f"{heading}: {listed(names, shown)}: {reason}")
    return lines


@dataclass(frozen=True)
class Plan:
    """The edits that make the small model, the layers that have none, and the request behind it."""

    edits: tuple[Edit, ...] = ()
    untouched: tuple[Untouched, ...] = ()
    request: Mapping[str, Any] = field(default_factory=dict)

    def prepare(self, model: nn.Module) -> nn.Module:
        """Make a copy of the dense model one of plain layers that computes the same, in place; return it."""
        for edit in self.edits:
            if edit.prepares and not isinstance(edit, Unfuse):
                edit.apply(model)
        return plain_attention(model)  # also where the model is nothing but attention

    def apply(self, model: nn.Module) -> None:
        """Apply all edits to the dense model, in place, weights included."""
        with kept_tied(model):
            for edit in self.edits:
                edit.apply(model)

    def reshape(self, model: nn.Module) -> None:
        """Give a newly built dense model the small one's architecture, in place."""
        with kept_tied(model):
            for edit in self.edits:
                edit.reshape(model)

    def to_json(self) -> dict[str, Any]:
        edits = [{"edit": edit.word, **asdict(edit)} for edit in self.edits]  # type: ignore[call-overload]
        untouched = [entry.to_json() for entry in self.untouched]
        return {"request": dict(self.request), "edits": edits, "untouched": untouched}

    @classmethod
    def from_json(cls, data: Any) -> Plan:
        """Return the plan in the data of a file; ValueError, in one line, if it is not one."""
        try:
            edits = tuple(_edit(dict(entry)) for entry in data["edits"])
            untouched = tuple(Untouched(str(u["layer"]), str(u["reason"]), bool(u["note"])) for u in data["untouched"])
            return cls(edits, untouched, dict(data["request"]))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a plan: {type(error).__name__} {error}") from None

    def __str__(self) -> str:
        lines = [str(edit) for edit in self.edits if not edit.prepares]
        return "\n".join([*lines, *in_words(self.untouched)])


def _is_count(value: Any) -> bool:
    return is_int(value) and value >= 0


_IS: dict[str, Callable[[Any], bool]] = {
    "str": lambda value: isinstance(value, str),
    "int": _is_count,
    "tuple[int, ...]": lambda value: isinstance(value, tuple) and all(map(_is_count, value)),
}


def _edit(entry: dict[str, Any]) -> Edit:
    """Return the edit in the data of a file, with its fields checked."""
    word = entry.pop("edit")
    if word not in EDITS:
        raise ValueError(f"not a plan: unknown edit {word!r}")
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()}
    types = {f.name: str(f.type) for f in fields(EDITS[word])}  # type: ignore[arg-type]
    for name, value in values.items():
        if name not in types or not _IS[types[name]](value):
            raise ValueError(f"not a plan: {word} of {entry.get('layer')!r} has {name} = {value!r}")
    return EDITS[word](**values)
