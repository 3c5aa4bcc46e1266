"""Preparation: a private copy of a network, made of plain layers that compute the same, before anything is removed from it.

Bake      a tensor that a parametrization or a hook of torch.nn.utils computes is stored       structure/computed.py
Replace   a plain layer stands in for a module that computes its weight by code of its own     structure/stand_ins.py
Unfuse    nn.MultiheadAttention becomes four linear layers                                      structure/attention.py

What has no such form stays as it is, with a note that says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from sparsefw.compression.artifact.plan import Bake, Edit, Plan, Replace, Unfuse, Untouched
from sparsefw.compression.artifact.probe import tolerance
from sparsefw.compression.reasons import Cause, because
from sparsefw.compression.recovery.calibration import run
from sparsefw.compression.structure import stand_ins
from sparsefw.compression.structure.attention import plain_attention
from sparsefw.compression.structure.channels import tensors_of
from sparsefw.compression.structure.computed import computed_by, computed_tensors, sources_of, value_of
from sparsefw.compression.structure.copies import private_copy
from sparsefw.compression.structure.gaps import relative_gap
from sparsefw.compression.structure.layers import (
    call_on_copy,
    evaluating,
    hooks,
    is_layer,
    replace_everywhere,
    shared_layers,
)
from sparsefw.text import first_line


class Prepared(NamedTuple):
    """A private copy made of plain layers, and the edits and notes that say how."""

    model: nn.Module
    plan: Plan


def prepared(model: nn.Module, example: Any, name: str = "example") -> Prepared:
    """Return a private copy of a network, made of plain layers.

    Args:
        model: The network, which is not changed.
        example: One of its inputs.
        name: What the user calls the example.
    """
    plain = copy_of(model)
    edits: list[Edit] = []
    notes: list[Untouched] = []
    if _has_own_layers(plain):
        seen: dict[str, Tensor] = {}
        with evaluating(plain), hooks(plain, _noting_inputs(seen)):
            expected = run(plain, example, name)
        bakes, notes = _bakes(plain)
        error = _failure(plain, example, expected)
        if error is None:
            edits += bakes
        else:  # such as code that asks for the parametrization itself
            plain = copy_of(model)
            notes = [note for note in notes if note.cause is not Cause.BAKED]
            notes += [Untouched.because(edit.layer, because(Cause.NOT_BAKED_CODE, error=error)) for edit in bakes]
        replaced, more = _replacements(plain, example, expected, seen)
        edits += replaced
        notes += more
    unfused = _multihead(plain)
    plain = plain_attention(plain)
    edits += [Unfuse(layer) for layer, old in unfused.items() if plain.get_submodule(layer) is not old]
    return Prepared(plain, Plan(tuple(edits), tuple(notes)))


def copy_of(model: nn.Module) -> nn.Module:
    """Return a copy; ValueError, in one line, of a model that has none."""
    try:
        return private_copy(model)
    except Exception as error:  # of the model's own code
        raise ValueError(f"the model cannot be copied, and compress works on a copy: {first_line(error)}") from error


def _has_own_layers(model: nn.Module) -> bool:
    return any(computed_tensors(module) or stand_ins.may_have_stand_in(module) for module in model.modules())


def _noting_inputs(seen: dict[str, Tensor]) -> Callable[[str, nn.Module], Sequence[Any]]:
    """Return what registers hooks that keep the first input of modules which may get a plain form, if it is one tensor."""

    def make(name: str, module: nn.Module) -> Sequence[Any]:
        def note(_: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            is_one = len(args) == 1 and not kwargs and all(isinstance(t, Tensor) for t in (*args, output))
            if is_one and name not in seen and args[0].is_floating_point():
                seen[name] = args[0].detach().clone()

        is_own = computed_tensors(module) or stand_ins.may_have_stand_in(module)
        return (module.register_forward_hook(note, with_kwargs=True),) if is_own else ()

    return make


def _failure(model: nn.Module, example: Any, expected: Any) -> str | None:
    """Return why a model does not compute the same as before; None if it does."""
    try:
        with evaluating(model):
            outputs = call_on_copy(model, example)
    except Exception as error:  # of the model's own code
        return f"{type(error).__name__}: {first_line(error)}"
    gap = relative_gap(expected, outputs, whole_numbers=True)
    return None if gap <= tolerance(model, tensors_of(outputs)) else f"outputs differ by {gap:.2g}"


class _Computed(NamedTuple):
    """A tensor that is computed, and the parameters from which."""

    layer: str
    tensor: str
    module: nn.Module
    sources: dict[nn.Parameter, nn.Module]

    @property
    def name(self) -> str:
        return f"{self.layer}.{self.tensor}".lstrip(".")


def _bakes(model: nn.Module) -> tuple[list[Bake], list[Untouched]]:
    """Store the computed tensors of a model, in place; return the edits and notes."""
    found = [
        _Computed(layer, tensor, module, sources_of(module, tensor))
        for layer, module in model.named_modules()
        if not isinstance(module, nn.RNNBase)  # which keeps its weights in a list besides
        for tensor in computed_tensors(module)
    ]
    partners = _partners(model, found)
    edits: list[Bake] = []
    notes: list[Untouched] = []
    first: dict[frozenset[nn.Parameter], str] = {}
    for entry in found:
        if entry.name in partners:
            other = partners[entry.name]
            notes.append(Untouched.because(entry.layer, because(Cause.NOT_BAKED_SHARED, other=other)))
            continue
        by = computed_by(entry.module, entry.tensor)
        shape = tuple(value_of(entry.module, entry.tensor).shape)
        same_as = first.setdefault(frozenset(entry.sources), entry.name) if entry.sources else entry.name
        edit = Bake(entry.layer, entry.tensor, shape, same_as if same_as != entry.name else "")
        edits.append(edit)
        notes.append(Untouched.because(entry.layer or "the model", because(Cause.BAKED, tensor=entry.tensor, by=by)))
    for edit in edits:
        edit.apply(model)
    return edits, notes


def _partners(model: nn.Module, found: Sequence[_Computed]) -> dict[str, str]:
    """Map computed tensors that cannot be stored to what else needs their sources: a module, or a tensor computed otherwise."""
    owners: dict[nn.Parameter, dict[nn.Module, str]] = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        owner = name.rpartition(".")[0]
        owners.setdefault(p, {}).setdefault(model.get_submodule(owner), owner)
    users: dict[nn.Parameter, list[_Computed]] = {}
    for entry in found:
        for p in entry.sources:
            users.setdefault(p, []).append(entry)
    partners: dict[str, str] = {}
    for p, entries in users.items():
        computing = {entry.sources[p] for entry in entries}
        others = [name for module, name in owners.get(p, {}).items() if module not in computing]
        if not others and not _are_one(entries):
            others = [entry.layer for entry in entries]
        for entry in entries if others else ():
            partners[entry.name] = next((other for other in others if other != entry.layer), others[0])
    return partners


def _are_one(entries: Sequence[_Computed]) -> bool:
    """Return whether tensors are computed from the same parameters, and equal."""
    values = [value_of(entry.module, entry.tensor) for entry in entries]
    same_sources = all(set(entry.sources) == set(entries[0].sources) for entry in entries)
    return same_sources and all(torch.equal(value, values[0]) for value in values)


def _replacements(
    model: nn.Module, example: Any, expected: Any, seen: dict[str, Tensor]
) -> tuple[list[Edit], list[Untouched]]:
    """Replace modules by their stand-ins, in place, those of one class together; return the edits and notes."""
    edits: list[Edit] = []
    notes: list[Untouched] = []
    shared = shared_layers(model)
    for modules in _by_class(model):
        ours, more = _stand_ins(modules, seen, shared)
        notes += more
        if not ours:
            continue
        old = {edit.layer: modules[edit.layer] for edit in ours}
        for edit in ours:
            edit.apply(model)
        error = _failure(model, example, expected)
        for edit in ours:
            kind = type(old[edit.layer]).__name__
            if error is None:
                edits.append(edit)
                reason = because(Cause.REPLACED, type=kind, plain=edit.type)
            else:  # such as code that reads an attribute of the module
                replace_everywhere(model, model.get_submodule(edit.layer), old[edit.layer])
                reason = because(Cause.NOT_BAKED_CODE, error=error)
            notes.append(Untouched.because(edit.layer, reason))
    return edits, notes


def _by_class(model: nn.Module) -> Iterable[dict[str, nn.Module]]:
    """Return the modules that may have stand-ins, by their names, in a dict for each class."""
    classes: dict[type, dict[str, nn.Module]] = {}
    for name, module in model.named_modules():
        if name and not is_parametrized(module) and stand_ins.may_have_stand_in(module):
            classes.setdefault(type(module), {})[name] = module
    return classes.values()


def _stand_ins(
    modules: dict[str, nn.Module], seen: dict[str, Tensor], shared: dict[str, str]
) -> tuple[list[Replace], list[Untouched]]:
    """Return the edits of those modules that have stand-ins, and notes on the layers among the others."""
    edits: list[Replace] = []
    notes: list[Untouched] = []
    for name, module in modules.items():
        if name not in seen or stand_ins.uses_its_weight(module, seen[name]):
            continue
        if name in shared:
            notes.append(Untouched.because(name, because(Cause.NOT_BAKED_SHARED, other=shared[name])))
            continue
        found = stand_ins.stand_in_of(module, seen[name])
        if found is not None:
            edits.append(Replace.by(name, found))
        elif is_layer(module):
            notes.append(Untouched.because(name, because(Cause.NOT_BAKED, type=type(module).__name__)))
    return edits, notes


def _multihead(model: nn.Module) -> dict[str, nn.Module]:
    return {
        name: module for name, module in model.named_modules() if name and isinstance(module, nn.MultiheadAttention)
    }
