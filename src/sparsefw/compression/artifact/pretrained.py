"""Networks of transformers as that library builds them: with a configuration that follows what was removed.

A configuration has one number for all layers. Where these agree, the numbers are searched for: on the meta device, the class is
built with other numbers until its weights have the shapes of the smaller network. The outputs are compared in the end.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sparsefw.compression.artifact.export import ExportError
from sparsefw.compression.structure.counted_norms import CountedNorm
from sparsefw.compression.structure.factorisation import Factors
from sparsefw.compression.structure.gaps import relative_gap
from sparsefw.compression.structure.layers import call_on_copy, evaluating
from sparsefw.compression.structure.numbers import may_count_channels
from sparsefw.models import is_of_transformers
from sparsefw.text import first_line, listed

_HEAD = "head_dim"  # which many classes compute from the width and the number of heads where a configuration lacks it
_INSTEAD = "keep it by sparsefw.save, and read it by sparsefw.load"
Shapes = Mapping[str, tuple[int, ...]]


def as_pretrained(model: nn.Module, example: Any, *, tolerance: float = 1e-4) -> nn.Module:
    """Return a compressed network of transformers as that library builds it from a configuration; it computes the same.

    What its save_pretrained writes, from_pretrained reads.

    Args:
        model: The network, as in compress(...).model.
        example: An input.
        tolerance: The largest accepted difference of the outputs, relative to them; ExportError beyond it, and where no
            configuration gives the network, as where layers of one size have lost differently many channels.
    """
    if not is_of_transformers(model):
        raise ExportError(f"only networks of transformers have a configuration, and {type(model).__name__} is none")
    _require_plain_layers(model)
    config = _followed(model)
    with torch.random.fork_rng(devices=[]):
        built = type(model)(config)
    weights = next(model.parameters())
    built.to(device=weights.device, dtype=weights.dtype)
    _fill(model, built)
    built.train(model.training)
    if hasattr(model, "generation_config"):
        built.generation_config = copy.deepcopy(model.generation_config)
    with evaluating(model):
        expected = call_on_copy(model, example)
    with evaluating(built):
        gap = relative_gap(expected, call_on_copy(built, example))
    if not gap <= tolerance:
        raise ExportError(
            f"with a configuration that has its shapes, the network differs by {gap:.2g} of its outputs: {_INSTEAD}"
        )
    return built


def _require_plain_layers(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, Factors):
            raise ExportError(f"{name} is two layers, which no configuration says: {_INSTEAD}")
        if isinstance(module, CountedNorm) and (
            module.form.centred or module.form.is_response or module.form.groups > 1
        ):
            raise ExportError(
                f"{name} averages over the {module.count} channels that there were, which no configuration says: remove "
                f"neurons= or heads= instead of filters=, or {_INSTEAD}"
            )


class _Number(NamedTuple):
    """A number of a configuration: the part of it, the key, and the place in a list."""

    owner: Any
    key: str
    place: int | None

    @property
    def value(self) -> Any:
        held = getattr(self.owner, self.key)
        return held if self.place is None else held[self.place]

    def set(self, value: Any) -> None:
        if self.place is not None:
            held = list(getattr(self.owner, self.key))
            held[self.place] = value
            value = type(getattr(self.owner, self.key))(held)
        setattr(self.owner, self.key, value)


def _followed(model: Any) -> Any:
    """Return a copy of the model's configuration with which its class has the shapes of the model."""
    config = copy.deepcopy(model.config)
    named = _with_size_of_heads(config)
    wanted = _shapes(model)
    dense = _shapes_built(type(model), config)
    if dense is None:
        raise ExportError(f"{type(model).__name__} cannot be built from its configuration: {_INSTEAD}")
    changes = _changes(dense, wanted)
    least = len(_misfits(dense, wanted))
    improved = bool(changes)
    while improved and least:
        improved = False
        for number in _numbers(config):
            before = number.value
            for candidate in _candidates(before, changes):
                shapes = _shapes_built(type(model), config, number, candidate)
                misfits = math.inf if shapes is None else len(_misfits(shapes, wanted))
                if misfits < least:
                    least, before, improved = int(misfits), candidate, True
            number.set(before)
    _forget_size_of_heads(config, named, type(model), wanted)
    if least:
        raise ExportError(_reason(type(model).__name__, dense, _shapes_built(type(model), config) or dense, wanted))
    _scale_eps(model, config)
    return config


def _with_size_of_heads(config: Any) -> list[Any]:
    """Name the size of a head where a configuration leaves it to be computed; return the parts of it that got the name."""
    named = []
    for part in _parts(config):
        width, heads = getattr(part, "hidden_size", None), getattr(part, "num_attention_heads", None)
        if isinstance(width, int) and isinstance(heads, int) and getattr(part, _HEAD, None) is None:
            setattr(part, _HEAD, width // heads)
            named.append(part)
    return named


def _forget_size_of_heads(config: Any, named: Sequence[Any], kind: type[nn.Module], wanted: Shapes) -> None:
    """Leave the size of a head out again where it changes nothing."""
    fits = len(_misfits(_shapes_built(kind, config) or {}, wanted))
    for part in named:
        size = getattr(part, _HEAD)
        setattr(part, _HEAD, None)
        delattr(part, _HEAD)
        if len(_misfits(_shapes_built(kind, config) or {}, wanted)) != fits:
            setattr(part, _HEAD, size)


def _parts(config: Any) -> Iterator[Any]:
    """Yield a configuration and those inside it."""
    yield config
    for held in list(vars(config).values()):
        if hasattr(held, "to_dict") and hasattr(held, "model_type"):
            yield from _parts(held)


def _numbers(config: Any) -> Iterator[_Number]:
    """Yield the numbers of a configuration that may count channels or heads, and those that are not set."""
    for part in _parts(config):
        for key, held in list(vars(part).items()):
            if key.startswith("_") or not may_count_channels(key):
                continue
            if held is None or (type(held) is int and held > 1):
                yield _Number(part, key, None)
            elif type(held) in (list, tuple):
                yield from (_Number(part, key, i) for i, n in enumerate(held) if type(n) is int and n > 1)


def _candidates(value: int | None, changes: Sequence[tuple[int, int]]) -> list[int]:
    """Return what a number may have become: smaller by the share of some axis, or as long as one where it is not set."""
    if value is None:
        return list(dict.fromkeys(after for _, after in changes))
    return list(dict.fromkeys(value * after // before for before, after in changes if value * after % before == 0))


def _shapes(model: nn.Module) -> Shapes:
    return {name: tuple(t.shape) for name, t in model.state_dict().items()}


def _shapes_built(kind: type[nn.Module], config: Any, number: _Number | None = None, value: int = 0) -> Shapes | None:
    """Return the shapes of the weights of a class with this configuration, and another number in it; None if it refuses it."""
    try:
        if number is not None:
            number.set(value)
        with torch.device("meta"):
            return _shapes(kind(copy.deepcopy(config)))
    except Exception:  # of the library's own code, such as heads that do not divide the width
        return None


def _changes(dense: Shapes, wanted: Shapes) -> list[tuple[int, int]]:
    """Return the lengths of axes before and after, each pair once."""
    pairs = [
        (before, after)
        for name in _misfits(dense, wanted)
        if len(dense.get(name, ())) == len(wanted.get(name, ()))
        for a in (dense[name], dense[name][::-1])
        for before, after in zip(a, wanted[name], strict=True)
        if after < before
    ]
    return list(dict.fromkeys(pairs))


def _misfits(built: Shapes, wanted: Shapes) -> list[str]:
    """Return the weights that have other shapes; a matrix may be the other way round, as in a Conv1D."""
    names = dict.fromkeys([*built, *wanted])
    return [name for name in names if wanted.get(name) not in (built.get(name), (built.get(name) or ())[::-1])]


def _reason(kind: str, dense: Shapes, built: Shapes, wanted: Shapes) -> str:
    """Return why no configuration gives these shapes."""
    none = f"no configuration of {kind} gives this network: "
    misfits = _misfits(built, wanted)
    name = misfits[0]
    for other, shape in wanted.items():
        if (
            _in_any_layer(other) == _in_any_layer(name)
            and dense.get(other) == dense.get(name)
            and shape != wanted[name]
        ):
            return (
                f"{none}layers differ, {name} has the shape {wanted[name]} and {other} {shape}: remove the same from all, by the "
                f"uniform allocation and without exclude=, or {_INSTEAD}"
            )
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in misfits))
    return (
        f"{none}{name} has the shape {wanted.get(name)}, and one that fits most others gives {built.get(name)}: exclude "
        f"{listed(layers)}, or {_INSTEAD}"
    )


def _in_any_layer(name: str) -> str:
    """Return the name of a weight without the numbers of its layers."""
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def _scale_eps(model: nn.Module, config: Any) -> None:
    """Let norms that average over fewer channels add as much to the mean of squares as before, relative to it."""
    norms = [module for module in model.modules() if isinstance(module, CountedNorm)]
    for eps, factor in {(norm.form.eps, norm.count / len(norm.weight)) for norm in norms}:
        for part in _parts(config):
            for key, held in list(vars(part).items()):
                if key.endswith("eps") and held == eps:
                    setattr(part, key, held * factor)


def _fill(model: nn.Module, built: nn.Module) -> None:
    """Give the built network the weights and buffers of the model, and what is trained of them."""
    state = model.state_dict()
    theirs = dict(built.named_modules())
    for name, module in model.named_modules():
        other = theirs.get(name)
        if isinstance(module, CountedNorm):
            offset = module.form.offset
            factor = math.sqrt(module.count / len(module.weight))
            state[f"{name}.weight"] = (module.weight + offset) * factor - offset
        elif isinstance(module, nn.Linear) and other is not None and not isinstance(other, nn.Linear):
            state[f"{name}.weight"] = _turned(module, other)
    try:
        built.load_state_dict({name: t.detach() for name, t in state.items()})
    except RuntimeError as error:
        raise ExportError(
            f"{type(model).__name__} does not take these weights: {first_line(error)}: {_INSTEAD}"
        ) from error
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    for name, p in built.named_parameters():
        p.requires_grad_(name not in frozen)


def _turned(linear: nn.Linear, other: Any) -> Tensor:
    """Return the weight of a linear layer as a module of another class has it, the other way round if need be."""
    x = torch.randn(2, linear.in_features, generator=torch.Generator().manual_seed(0)).to(linear.weight)
    for weight in (linear.weight, linear.weight.T):
        if weight.shape != other.weight.shape:
            continue
        with torch.no_grad():
            other.weight.copy_(weight)
            if linear.bias is not None:
                other.bias.copy_(linear.bias)
            if relative_gap(linear(x), other(x)) < math.sqrt(torch.finfo(x.dtype).eps):
                return weight
    return linear.weight
