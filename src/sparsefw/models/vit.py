"""A small vision transformer: patches of the image as tokens, norms before each part, learned positions.

The classifier reads the mean over all tokens, so that there is no class token unlike the others, as in Beyer, Zhai, Kolesnikov:
Better plain ViT baselines for ImageNet-1k, arXiv:2205.01580.

The hidden neurons and the heads can be removed. The width cannot: every norm averages over it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparsefw.models.parts import require_whole

# Tokens start with values of size 1. Positions must be seen beside them: the mean over tokens knows no other order.
POSITIONS_START = 0.5
HEAD_START = 0.02


class Attention(nn.Module):
    """Self-attention from two plain linear layers, which can be constrained as any other.

    nn.MultiheadAttention keeps its projections as bare parameters, which are in no layer and so get no region.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        # Names and attributes by which compression knows that heads can go. `forward` must not derive them from the width.
        self.num_heads, self.head_dim = heads, width // heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, self.head_dim)).permute(2, 0, 3, 1, 4).unbind(0)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class EncoderBlock(nn.Module):
    """Attention, then two linear layers on each token, each behind its norm and added to what came in."""

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

    image, patch    side of an image, and of the patches it is cut into, in pixels
    width           size of a token; `heads` must divide it
    mlp_ratio       hidden neurons of a block, as a multiple of the width
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
        require_whole(1, classes=classes, in_channels=in_channels, image=image, patch=patch)
        require_whole(1, width=width, depth=depth, heads=heads, mlp_ratio=mlp_ratio)
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
        # A convolution would take other sizes, and drop what is left of the last patch.
        if x.shape[1:] != self.shape:
            raise ValueError(f"images must have the shape {self.shape}, got {tuple(x.shape[1:])}")
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.norm(self.blocks(tokens)).mean(dim=1))

    def _initialise(self) -> None:
        """Truncated normal weights that keep the size of what they read, but in the head: there smaller; biases at 0."""
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Conv2d)):
                _truncated_normal(module.weight, module.weight[0].numel() ** -0.5)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        _truncated_normal(self.positions, POSITIONS_START)
        _truncated_normal(self.head.weight, HEAD_START)


def _truncated_normal(weight: Tensor, deviation: float) -> None:
    nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation)
