"""A small vision transformer with pre-normalisation and learned positions.

The classifier reads the mean over all tokens instead of a class token, as in Beyer, Zhai, Kolesnikov: Better plain ViT
baselines for ImageNet-1k, arXiv:2205.01580.

Compression can remove hidden neurons and heads. It cannot reduce the width: every norm averages over it.

Dosovitskiy et al.: An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale, arXiv:2010.11929.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparsefw.models.arguments import require_blocks, require_int

# Standard deviations. Tokens start at a deviation of 1, and positions must be visible beside them: nothing else in the
# network depends on the order of the tokens.
INITIAL_POSITIONS = 0.5
INITIAL_HEAD = 0.02


class Attention(nn.Module):
    """Self-attention from two nn.Linear layers, which can be constrained as all others.

    nn.MultiheadAttention keeps its input projections as bare parameters, which belong to no layer and get no region.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        # Compression recognises attention by these names. `forward` must not derive them from the width.
        self.num_heads = heads
        self.head_dim = width // heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, self.head_dim)).permute(2, 0, 3, 1, 4).unbind(0)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class EncoderBlock(nn.Module):
    """Attention, then two linear layers per token, each after a norm and with a shortcut around it."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    """A vision transformer for square images of one size.

    Args:
        classes: outputs.
        in_channels: channels of an image.
        image: side of an image in pixels.
        patch: side of a patch in pixels; it divides `image`.
        width: size of a token.
        depth: number of blocks.
        heads: attention heads per block; it divides `width`.
        mlp_ratio: hidden neurons of a block, as a multiple of the width.
    """

    def __init__(
        self,
        *,
        classes: int = 10,
        in_channels: int = 3,
        image: int = 32,
        patch: int = 4,
        width: int = 192,
        depth: int = 9,
        heads: int = 3,
        mlp_ratio: int = 4,
    ) -> None:
        super().__init__()
        require_int(1, classes=classes, in_channels=in_channels, image=image, patch=patch)
        require_int(1, width=width, heads=heads, mlp_ratio=mlp_ratio)
        require_blocks(depth=depth)
        if image % patch:
            raise ValueError(f"image must be a multiple of patch, got {image} and {patch}")
        if width % heads:
            raise ValueError(f"width must be a multiple of heads, got {width} and {heads}")
        self.shape = (in_channels, image, image)
        self.patches = nn.Conv2d(in_channels, width, patch, stride=patch)
        self.positions = nn.Parameter(torch.empty(1, (image // patch) ** 2, width))
        self.blocks = nn.Sequential(*(EncoderBlock(width, heads, mlp_ratio * width) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)
        self._initialise()

    def forward(self, x: Tensor) -> Tensor:
        # The convolution would accept other sizes and drop the pixels after the last whole patch.
        if x.shape[1:] != self.shape:
            raise ValueError(f"images must have the shape {self.shape}, got {tuple(x.shape[1:])}")
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.norm(self.blocks(tokens)).mean(dim=1))

    def _initialise(self) -> None:
        """Draw truncated normal weights that preserve the scale of their inputs, smaller ones in the head; set biases to 0."""
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Conv2d)):
                _truncated_normal(module.weight, module.weight[0].numel() ** -0.5)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        _truncated_normal(self.positions, INITIAL_POSITIONS)
        _truncated_normal(self.head.weight, INITIAL_HEAD)


def _truncated_normal(weight: Tensor, deviation: float) -> None:
    nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation)
