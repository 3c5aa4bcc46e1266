"""Heads: the columns of the output projection of an attention module that read one head."""

from __future__ import annotations

from typing import NamedTuple

from torch import nn

from sparsefw.geometry import Groups, View
from sparsefw.kinds.kind import Kind

_OUTPUT = "proj"
_JOINT_INPUT = ("qkv",)
_SEPARATE_INPUTS = ("query", "key", "value")


class Attention(NamedTuple):
    """How an attention module is built.

    projection   the name of its output projection
    heads        the number of heads that the projection reads
    size         the number of channels of each head
    inputs       the names of the linear layers that compute queries, keys and values: one layer for all three, or one for each;
                 none if they are not layers, as in nn.MultiheadAttention
    """

    projection: str
    heads: int
    size: int
    inputs: tuple[str, ...]


def attention_of(module: nn.Module) -> Attention | None:
    """Return how an attention module is built; None for other modules.

    Known are nn.MultiheadAttention, and modules with num_heads, head_dim, a linear `proj`, and a linear `qkv` or query, key and
    value: the vision transformers of timm, and the modules that compression makes from nn.MultiheadAttention.

    >>> attention_of(nn.MultiheadAttention(32, num_heads=4))
    Attention(projection='out_proj', heads=4, size=8, inputs=())
    """
    if isinstance(module, nn.MultiheadAttention):
        return Attention("out_proj", module.num_heads, module.head_dim, inputs=())
    count = getattr(module, "num_heads", None)
    size = getattr(module, "head_dim", None)
    if not (isinstance(count, int) and isinstance(size, int)):
        return None
    has_joint_input = getattr(module, _JOINT_INPUT[0], None) is not None
    names = _JOINT_INPUT if has_joint_input else _SEPARATE_INPUTS
    inputs = [getattr(module, name, None) for name in names]
    projection = getattr(module, _OUTPUT, None)
    if not all(isinstance(layer, nn.Linear) for layer in (projection, *inputs)):
        return None
    outputs = sum(layer.out_features for layer in inputs)  # type: ignore[union-attr]
    fits = outputs == 3 * count * size and projection.in_features == count * size  # type: ignore[union-attr]
    return Attention(_OUTPUT, count, size, names) if fits else None


class Heads(Kind):
    """A head is the columns of the output projection that read it: where they are 0, the head has no effect."""

    @property
    def requirement(self) -> str:
        return "known attention module"

    @property
    def hint(self) -> str:
        return "; give example=, a batch of inputs, by which attention is found in any code"

    @property
    def sought(self) -> str:
        return "attention of several heads"

    @property
    def leaves_output_free(self) -> bool:
        return False  # heads are inputs of the projection, which can be removed also where it writes the output

    def views(self, model: nn.Module) -> dict[str, View]:
        views: dict[str, View] = {}
        for name, module in model.named_modules(remove_duplicate=False):
            attention = attention_of(module)
            if attention is not None:
                parameter = ".".join(filter(None, (name, attention.projection, "weight")))
                views[parameter] = Groups(axis=1, width=attention.size)
        return views
