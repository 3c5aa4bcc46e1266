"""Numbers in modules by which their code lays out channels, such as num_heads=4 or split_sizes=(16, 48).

A network that lost channels runs by its own code only if these numbers say what is left. A number is named by its module, its
attribute and, in a tuple or list, its index: "blocks.0.attn.num_heads", "blocks.0.split_sizes.1".
"""

from __future__ import annotations

from typing import Any

from torch import nn

# Words in the names of numbers that count something else, and happen to be as large.
_OTHERS = (
    "window", "patch", "image", "stride", "kernel", "resolution", "seq", "length", "position", "depth", "layer", "ratio", "pad",
    "dilation", "img", "grid", "level", "index", "token", "shift", "vocab", "id", "rep", "batch", "class", "label",
)  # fmt: skip
_OF_THE_LAST_AXIS = ("dim", "size", "width", "channel")  # of the channels of a head, beside a number of heads


def numbers_in(module: nn.Module, value: int, last: bool | None = None) -> list[str]:
    """Return the names of the numbers of a module that may be a length of an axis of channels.

    Args:
        module: Its own attributes are looked at, not those of its parts.
        value: The length.
        last: Whether it is the last axis of a tensor, which is rather called a dimension, or another, such as that of heads;
            None: either.

    >>> attention = nn.Linear(3, 4)
    >>> attention.heads, attention.head_dim, attention.parts, attention.window_size = 4, 4, [2, 4], 4
    >>> numbers_in(attention, 4)
    ['out_features', 'heads', 'head_dim', 'parts.1']
    >>> numbers_in(attention, 4, last=True)
    ['head_dim']
    """
    names = []
    for name, held in vars(module).items():
        if not may_count_channels(name):
            continue
        if _is_number(held, value):
            names.append(name)
        elif type(held) in (tuple, list):
            names += [f"{name}.{i}" for i, entry in enumerate(held) if _is_number(entry, value)]
    if last is None:
        return names
    of_kind = [name for name in names if last == any(word in name.lower() for word in _OF_THE_LAST_AXIS)]
    return of_kind or names


def may_count_channels(name: str) -> bool:
    """Return whether a number of this name may count channels or heads.

    >>> may_count_channels("num_heads"), may_count_channels("num_hidden_layers")
    (True, False)
    """
    return {word.removesuffix("s") for word in name.lower().split("_")}.isdisjoint(_OTHERS)


def _is_number(held: Any, value: int) -> bool:
    return type(held) is int and held == value and value > 1


def number_of(model: nn.Module, name: str) -> int:
    """Return a number of a module by its name.

    Raises:
        ValueError: there is none.
    """
    owner, attribute, index = _place(model, name)
    held = vars(owner)[attribute]
    number = held if index is None else held[index]
    if type(number) is not int:
        raise ValueError(f"{name} is not a number of the network")
    return number


def set_number(model: nn.Module, name: str, value: int) -> None:
    """Set a number of a module, in place."""
    number_of(model, name)
    owner, attribute, index = _place(model, name)
    if index is None:
        setattr(owner, attribute, value)
        return
    held = list(vars(owner)[attribute])
    held[index] = value
    setattr(owner, attribute, type(vars(owner)[attribute])(held))


def _place(model: nn.Module, name: str) -> tuple[nn.Module, str, int | None]:
    """Return the module, the attribute, and the index in a tuple or list."""
    path = name.split(".")
    index = int(path.pop()) if path[-1].isdigit() and len(path) > 1 else None
    owner: Any = model
    for part in path[:-1]:
        owner = getattr(owner, part, None)
    held: Any = vars(owner).get(path[-1]) if isinstance(owner, nn.Module) else None
    fits = type(held) is int if index is None else type(held) in (tuple, list) and index < len(held)
    if not fits:
        raise ValueError(f"{name} is not a number of the network")
    assert isinstance(owner, nn.Module)
    return owner, path[-1], index


def outer_modules(layer: str, levels: int = 2) -> list[str]:
    """Return the names of the modules around a layer, the innermost first; the model's own is empty.

    >>> outer_modules("encoder.blocks.0.attn.proj")
    ['encoder.blocks.0.attn', 'encoder.blocks.0']
    """
    names = []
    for _ in range(levels):
        if not layer:
            break
        layer = layer.rpartition(".")[0]
        names.append(layer)
    return names
