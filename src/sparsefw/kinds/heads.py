"""Heads: the columns of an attention block's output projection that read one head."""

from __future__ import annotations

from typing import NamedTuple

from torch import nn

from sparsefw.geometry import Groups, View
from sparsefw.kinds.kind import Kind


class Attention(NamedTuple):
    """An attention block: the name of its output projection, the number of heads that it reads, and the channels of each."""

    projection: str
    heads: int
    size: int


def attention_of(module: nn.Module) -> Attention | None:
    """Return how an attention block is built; None for other modules.

    Known are nn.MultiheadAttention, and modules with num_heads, head_dim, a linear `proj`, and a linear `qkv` or query, key and
    value: the vision transformers of timm, and the blocks that compression makes from nn.MultiheadAttention.

    >>> attention_of(nn.MultiheadAttention(32, num_heads=4))
    Attention(projection='out_proj', heads=4, size=8)
    """
    if isinstance(module, nn.MultiheadAttention):
        return Attention("out_proj", module.num_heads, module.head_dim)
    count = getattr(module, "num_heads", None)
    size = getattr(module, "head_dim", None)
    if not (isinstance(count, int) and isinstance(size, int)):
        return None
    projection = getattr(module, "proj", None)
    qkv = getattr(module, "qkv", None)
    inputs = [qkv] if qkv is not None else [getattr(module, name, None) for name in ("query", "key", "value")]
    if not all(isinstance(layer, nn.Linear) for layer in (projection, *inputs)):
        return None
    outputs = sum(layer.out_features for layer in inputs)  # type: ignore[union-attr]
    fits = outputs == 3 * count * size and projection.in_features == count * size  # type: ignore[union-attr]
    return Attention("proj", count, size) if fits else None


class Heads(Kind):
    """A head is the columns of the output projection that read it: where they are 0, the head has no effect."""

    @property
    def looks_for(self) -> str:
        return "known attention block"

    def views(self, model: nn.Module) -> dict[str, View]:
        views: dict[str, View] = {}
        for name, module in model.named_modules(remove_duplicate=False):
            block = attention_of(module)
            if block is not None:
                parameter = ".".join(filter(None, (name, block.projection, "weight")))
                views[parameter] = Groups(axis=1, width=block.size)
        return views
