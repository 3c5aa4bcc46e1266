"""Attention as layers, in place: nn.MultiheadAttention seen as plain linear layers over its very weights.

Compression replaces nn.MultiheadAttention in its copy by four linear layers. A network that is made smaller in place keeps it:
its queries, keys and values are rows of one weight, and a view of the network names them as layers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from sparsefw.compression.structure.attention import PlainAttention, from_multihead, is_replaceable

_SEPARATE = ("q_proj_weight", "k_proj_weight", "v_proj_weight")  # where keys or values have a width of their own


class PlainView(NamedTuple):
    """A network seen as plain layers.

    plain        a network of the same modules and weights, but for attention; where there is none, the network itself
    attentions   every nn.MultiheadAttention of the network, and what is in its place
    """

    plain: nn.Module
    attentions: dict[nn.Module, PlainAttention]


def plain_view(model: nn.Module) -> PlainView:
    """Return a network as plain layers; nothing is copied."""
    attentions: dict[nn.Module, PlainAttention] = {}
    seen: dict[nn.Module, nn.Module] = {}

    def viewed(module: nn.Module) -> nn.Module:
        if module not in seen:
            if isinstance(module, nn.MultiheadAttention) and is_replaceable(module):
                seen[module] = attentions[module] = _over_its_weights(module)
            else:
                seen[module] = with_children(module)
        return seen[module]

    def with_children(module: nn.Module) -> nn.Module:
        children = {name: None if child is None else viewed(child) for name, child in module._modules.items()}
        if all(child is module._modules[name] for name, child in children.items()):
            return module
        around = object.__new__(type(module))
        vars(around).update(vars(module))
        vars(around)["_modules"] = children
        return around

    return PlainView(viewed(model), attentions)


def _over_its_weights(old: nn.MultiheadAttention) -> PlainAttention:
    plain = from_multihead(old)
    plain.query, plain.key, plain.value = (LinearPart(old, part) for part in range(3))
    plain.proj = old.out_proj
    return plain


class LinearPart(nn.Linear):
    """The layer of the queries, keys or values of an nn.MultiheadAttention: some rows of its weight, as it is at the moment.

    weight   shares the memory of these rows
    bias     these entries of the bias, for gradients too
    """

    source: nn.MultiheadAttention

    def __init__(self, source: nn.MultiheadAttention, part: int) -> None:
        nn.Module.__init__(self)
        vars(self)["source"] = source  # no part of this layer
        width = source.embed_dim
        self._is_whole = source.in_proj_weight is None
        self._weight_name = _SEPARATE[part] if self._is_whole else "in_proj_weight"
        self._rows = slice(part * width, (part + 1) * width)
        self.in_features, self.out_features = self._part_of_weight().shape[1], width

    @property
    def weight(self) -> nn.Parameter:  # type: ignore[override]
        part: Any = nn.Parameter(self._part_of_weight().detach(), requires_grad=False)
        part.part_of = getattr(self.source, self._weight_name), slice(None) if self._is_whole else self._rows
        return part

    @property
    def bias(self) -> Tensor | None:  # type: ignore[override]
        whole = self.source.in_proj_bias
        if whole is None:
            return None
        part: Any = whole[self._rows]
        part.part_of = whole, self._rows
        return part

    def forward(self, x: Tensor) -> Tensor:
        whole = self.source.in_proj_bias
        return functional.linear(x, self._part_of_weight(), None if whole is None else whole[self._rows])

    def _part_of_weight(self) -> Tensor:
        whole: Tensor = getattr(self.source, self._weight_name)
        return whole if self._is_whole else whole[self._rows]


def whole_of(tensor: Tensor) -> Tensor:
    """Return the parameter of which a tensor is a part; the tensor itself if it is none."""
    whole: Tensor = getattr(tensor, "part_of", (tensor,))[0]
    return whole


def gradient_of(tensor: Tensor) -> Tensor | None:
    """Return the gradient of a tensor, which may be a part of a parameter."""
    whole, rows = getattr(tensor, "part_of", (tensor, None))
    gradient: Tensor | None = whole.grad
    return gradient if gradient is None or rows is None else gradient[rows]


def set_gradient(tensor: Tensor, value: Tensor) -> None:
    """Set the gradient of a tensor that has one, in its memory format."""
    gradient = gradient_of(tensor)
    assert gradient is not None
    if whole_of(tensor) is tensor:
        tensor.grad = torch.empty_like(gradient).copy_(value)
    else:
        with torch.no_grad():
            gradient.copy_(value)
