"""Heads: what the output projection of an attention block reads from one head."""

from __future__ import annotations

from typing import NamedTuple

from torch import nn

from sparsefw.geometry import Groups, View
from sparsefw.kinds.kind import Kind


class Attention(NamedTuple):
    """An attention block: the name of its output projection, which reads so many heads of `size` channels each."""

    projection: str
    heads: int
    size: int


def attention_of(module: nn.Module) -> Attention | None:
    """nn.MultiheadAttention; and blocks with num_heads, head_dim, a linear `proj`, and a linear `qkv` or query, key and value.

    The latter are timm's vision transformers, and what compression makes of the former.
    """
    if isinstance(module, nn.MultiheadAttention):
        return Attention("out_proj", module.num_heads, module.head_dim)
    count, size = getattr(module, "num_heads", None), getattr(module, "head_dim", None)
    if not (isinstance(count, int) and isinstance(size, int)):
        return None
    projection, qkv = getattr(module, "proj", None), getattr(module, "qkv", None)
    inputs = [qkv] if qkv is not None else [getattr(module, name, None) for name in ("query", "key", "value")]
    if not all(isinstance(layer, nn.Linear) for layer in (projection, *inputs)):
        return None
    written = sum(layer.out_features for layer in inputs)  # type: ignore[union-attr]
    fits = written == 3 * count * size and projection.in_features == count * size  # type: ignore[union-attr]
    return Attention("proj", count, size) if fits else None


class Heads(Kind):
    """A head is the columns of the output projection that read it: where they are 0, the head is as good as gone."""

    @property
    def looks_for(self) -> str:
        return "attention block that heads can be told apart in"

    def views(self, model: nn.Module) -> dict[str, View]:
        blocks = {name: attention_of(module) for name, module in model.named_modules(remove_duplicate=False)}
        return {
            ".".join(filter(None, (name, block.projection, "weight"))): Groups(axis=1, width=block.size)
            for name, block in blocks.items()
            if block is not None
        }
