"""A plan: what was done to which layer, as data. Applied to the dense model's architecture it gives the small one's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar

import torch
from torch import nn

from sparsefw.compression.structure import factorisation, layers, masks, surgery
from sparsefw.compression.structure.attention import PlainAttention, unfuse
from sparsefw.geometry.select import first_k_mask


class Edit(ABC):
    """One change of one layer."""

    layer: str
    word: ClassVar[str]

    @abstractmethod
    def apply(self, model: nn.Module) -> None:
        """Carry it out on the dense model, in place, weights included."""

    def reshape(self, model: nn.Module) -> None:
        """Change the architecture only; the weights will be loaded. Works on the meta device."""


@dataclass(frozen=True)
class Unfuse(Edit):
    """An nn.MultiheadAttention becomes four linear layers that compute the same."""

    layer: str
    word: ClassVar[str] = "unfuse"

    def apply(self, model: nn.Module) -> None:
        if not isinstance(model.get_submodule(self.layer), PlainAttention):  # or it was replaced under another name
            unfuse(model, self.layer)

    reshape = apply


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


@dataclass(frozen=True)
class Split(Edit):
    """A layer becomes two, with `rank` channels (per group) between them."""

    layer: str
    rank: int
    word: ClassVar[str] = "split"

    def apply(self, model: nn.Module) -> None:
        layers.replace(model, self.layer, factorisation.split(model.get_submodule(self.layer), self.rank))

    def reshape(self, model: nn.Module) -> None:
        layers.replace(
            model, self.layer, nn.Sequential(*factorisation.empty_pair(model.get_submodule(self.layer), self.rank))
        )


@dataclass(frozen=True)
class Zero(Edit):
    """Filters of a layer are 0: masked, the architecture stays."""

    layer: str
    filters: tuple[int, ...]
    word: ClassVar[str] = "zero"

    def apply(self, model: nn.Module) -> None:
        surgery.zero_filters(model.get_submodule(self.layer), self.filters)


@dataclass(frozen=True)
class Mute(Edit):
    """Heads of an attention block are not read: masked, the architecture stays."""

    layer: str
    heads: tuple[int, ...]
    word: ClassVar[str] = "mute"

    def apply(self, model: nn.Module) -> None:
        surgery.zero_heads(model.get_submodule(self.layer), self.heads)


@dataclass(frozen=True)
class Truncate(Edit):
    """A layer's weight has this rank but stays one layer, because two would not be smaller."""

    layer: str
    rank: int
    word: ClassVar[str] = "truncate"

    def apply(self, model: nn.Module) -> None:
        layer = model.get_submodule(self.layer)
        layers.set_weight(layer, factorisation.truncate(layers.as_matrices(layer), self.rank))


@dataclass(frozen=True)
class Thin(Edit):
    """All but the `nonzero` largest of a layer's weights are 0 (the n largest of every m along the inputs, where given)."""

    layer: str
    nonzero: int
    of: int
    pattern: tuple[int, ...] = ()
    word: ClassVar[str] = "thin"

    def apply(self, model: nn.Module) -> None:
        layer = model.get_submodule(self.layer)
        weight = layers.weight_of(layer)
        mask = (
            masks.n_m_mask(layer, *self.pattern)
            if self.pattern
            else first_k_mask(weight.detach().abs().flatten(), self.nonzero).view(weight.shape)
        )
        with torch.no_grad():
            weight.mul_(mask)


EDITS: dict[str, type[Edit]] = {edit.word: edit for edit in (Unfuse, Keep, Split, Zero, Mute, Truncate, Thin)}


@dataclass(frozen=True)
class Untouched:
    """What was left as it is, and why; or, as a note, something else that should be known about a layer."""

    layer: str
    reason: str
    note: bool = False


def in_words(untouched: Iterable[Untouched], shown: int = 3) -> list[str]:
    """A line for every reason, with the layers that it holds for."""
    groups: dict[tuple[bool, str], list[str]] = {}
    for entry in untouched:
        groups.setdefault((entry.note, entry.reason), []).append(entry.layer)
    lines = []
    for (note, reason), names in groups.items():
        more = f" and {len(names) - shown} more" if len(names) > shown else ""
        lines.append(f"{'note' if note else 'left as it is'}: {', '.join(names[:shown])}{more}: {reason}")
    return lines


@dataclass(frozen=True)
class Plan:
    edits: tuple[Edit, ...] = ()
    untouched: tuple[Untouched, ...] = ()
    request: Mapping[str, Any] = field(default_factory=dict)

    def apply(self, model: nn.Module) -> None:
        """Carry the plan out on the dense model, in place."""
        for edit in self.edits:
            edit.apply(model)

    def reshape(self, model: nn.Module) -> None:
        """Give a freshly built dense model the small one's architecture, in place."""
        for edit in self.edits:
            edit.reshape(model)

    def to_json(self) -> dict[str, Any]:
        edits = [{"edit": edit.word, **asdict(edit)} for edit in self.edits]  # type: ignore[call-overload]
        return {"request": dict(self.request), "edits": edits, "untouched": [asdict(u) for u in self.untouched]}

    @classmethod
    def from_json(cls, data: Any) -> Plan:
        """The plan in a file; ValueError, in one line, for whatever is not one."""
        try:
            edits = tuple(_edit(dict(entry)) for entry in data["edits"])
            untouched = tuple(Untouched(str(u["layer"]), str(u["reason"]), bool(u["note"])) for u in data["untouched"])
            return cls(edits, untouched, dict(data["request"]))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a plan: {type(error).__name__} {error}") from None

    def __str__(self) -> str:
        lines = [_sentence(edit) for edit in self.edits if not isinstance(edit, Unfuse)]
        return "\n".join([*lines, *in_words(self.untouched)])


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


_IS: dict[str, Callable[[Any], bool]] = {
    "str": lambda value: isinstance(value, str),
    "int": _is_count,
    "tuple[int, ...]": lambda value: isinstance(value, tuple) and all(map(_is_count, value)),
}


def _edit(entry: dict[str, Any]) -> Edit:
    word = entry.pop("edit")
    if word not in EDITS:
        raise ValueError(f"not a plan: unknown edit {word!r}")
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()}
    types = {f.name: str(f.type) for f in fields(EDITS[word])}  # type: ignore[arg-type]
    for name, value in values.items():
        if name not in types or not _IS[types[name]](value):
            raise ValueError(f"not a plan: {word} of {entry.get('layer')!r} has {name} = {value!r}")
    return EDITS[word](**values)


def _sentence(edit: Edit) -> str:
    match edit:
        case Keep(layer, side, kept):
            return (
                f"{layer}: keeps {len(kept)} {side} channels"
                if side in ("in", "out")
                else f"{layer}: keeps {len(kept)}"
            )
        case Split(layer, rank):
            return f"{layer}: two layers of rank {rank}"
        case Truncate(layer, rank):
            return f"{layer}: rank {rank} in one layer (two would not be smaller)"
        case Mute(layer, heads):
            return f"{layer}: {len(heads)} heads are not read"
        case Zero(layer, filters):
            return f"{layer}: {len(filters)} filters zeroed"
        case Thin(layer, nonzero, of, _):
            return f"{layer}: {nonzero} of {of} weights nonzero"
    return str(edit)
