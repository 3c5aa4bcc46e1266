"""Attention made of plain linear layers: heads can be removed, and every projection is compressed like any other layer.

nn.MultiheadAttention ties the number of heads to the width of the model and never calls its projections as layers. Before
compression it is replaced by PlainAttention, which computes the same from four linear layers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from sparsefw.compression.structure.layers import is_customised, replace_everywhere


class PlainAttention(nn.Module):
    """Scaled dot-product attention of `heads` heads of size `head_size`, called like nn.MultiheadAttention."""

    # nn.TransformerEncoderLayer reads it: if it is None, it calls its layers instead of a fused kernel.
    in_proj_bias = None

    def __init__(
        self,
        width: int,
        heads: int,
        head_size: int,
        *,
        inputs: tuple[int, int] | None = None,
        bias: bool = True,
        batch_first: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        inner = heads * head_size
        keys, values = inputs or (width, width)
        self.embed_dim = width
        self.num_heads = heads
        self.head_dim = head_size
        self.batch_first = batch_first
        self.dropout = dropout
        self.query = nn.Linear(width, inner, bias=bias)
        self.key = nn.Linear(keys, inner, bias=bias)
        self.value = nn.Linear(values, inner, bias=bias)
        self.proj = nn.Linear(inner, width, bias=bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        if is_causal and attn_mask is None:  # a hint that describes the mask
            raise ValueError("is_causal needs attn_mask, as in nn.MultiheadAttention")
        batched = query.dim() == 3
        if not batched:
            query, key, value = query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1)
        q, k, v = self._heads(self.query(query)), self._heads(self.key(key)), self._heads(self.value(value))
        mask = _additive_mask(attn_mask, key_padding_mask, q, k)
        weights = None
        if need_weights:
            scores = q @ k.transpose(-2, -1) / self.head_dim**0.5
            weights = torch.softmax(scores if mask is None else scores + mask, dim=-1)
            weights = functional.dropout(weights, self.dropout, self.training)
            mixed = weights @ v
            weights = weights.mean(dim=1) if average_attn_weights else weights
        else:
            dropout = self.dropout if self.training else 0.0
            mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
        out = self.proj(mixed.transpose(1, 2).flatten(2))
        if not batched:
            return out.squeeze(0), weights if weights is None else weights.squeeze(0)
        return out if self.batch_first else out.transpose(0, 1), weights

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)


def _additive_mask(attention: Tensor | None, padding: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """Combine both masks of nn.MultiheadAttention into one tensor to add to the scores."""
    total: Tensor | None = None
    if attention is not None:
        shaped = attention if attention.dim() == 2 else attention.view(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
        total = _as_scores(shaped, q)
    if padding is not None:
        hidden = _as_scores(padding.view(q.shape[0], 1, 1, k.shape[2]), q)
        total = hidden if total is None else total + hidden
    return total


def _as_scores(mask: Tensor, q: Tensor) -> Tensor:
    if mask.dtype == torch.bool:
        return torch.zeros_like(mask, dtype=q.dtype).masked_fill_(mask, float("-inf"))
    return mask.to(q.dtype)


def plain_attention(model: nn.Module) -> nn.Module:
    """Replace every nn.MultiheadAttention in the model, in place, by an equal PlainAttention; return the model."""
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.MultiheadAttention) and is_replaceable(module):
            if module is model:
                return from_multihead(module)
            unfuse(model, name)
    return model


def is_replaceable(module: nn.MultiheadAttention) -> bool:
    """Return whether it computes exactly what nn.MultiheadAttention does, without the rare extra key and value."""
    return (
        type(module).forward is nn.MultiheadAttention.forward
        and not is_customised(module)
        and module.bias_k is None
        and not module.add_zero_attn
    )


def unfuse(model: nn.Module, name: str) -> None:
    """Replace one nn.MultiheadAttention, under all of its names, by an equal PlainAttention."""
    old = model.get_submodule(name)
    assert isinstance(old, nn.MultiheadAttention)
    replace_everywhere(model, old, from_multihead(old))
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder):
            # With a padding mask it would pass on nested tensors, which plain layers do not accept.
            module.use_nested_tensor = False


def from_multihead(old: nn.MultiheadAttention) -> PlainAttention:
    bias = old.in_proj_bias is not None
    with torch.random.fork_rng(
        devices=[]
    ):  # initial weights are drawn and overwritten; the caller's random state stays
        new = _empty_like(old, bias)
    if old.in_proj_weight is not None:
        weights = old.in_proj_weight.detach().chunk(3)
    else:
        weights = (old.q_proj_weight.detach(), old.k_proj_weight.detach(), old.v_proj_weight.detach())
    source = old.in_proj_weight if old.in_proj_weight is not None else old.q_proj_weight
    with torch.no_grad():
        for i, layer in enumerate((new.query, new.key, new.value)):
            layer.weight.copy_(weights[i])
            layer.weight.requires_grad_(source.requires_grad)
            if bias:
                layer.bias.copy_(old.in_proj_bias.detach().chunk(3)[i])
                layer.bias.requires_grad_(old.in_proj_bias.requires_grad)
        new.proj.load_state_dict(old.out_proj.state_dict())
    for copied, original in zip(new.proj.parameters(), old.out_proj.parameters(), strict=True):
        copied.requires_grad_(original.requires_grad)
    return new.train(old.training)


def _empty_like(old: nn.MultiheadAttention, bias: bool) -> PlainAttention:
    return PlainAttention(
        old.embed_dim,
        old.num_heads,
        old.head_dim,
        inputs=(old.kdim, old.vdim),
        bias=bias,
        batch_first=old.batch_first,
        dropout=old.dropout,
    ).to(old.out_proj.weight)
