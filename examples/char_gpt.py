"""Train a small character-level GPT on the pages of docs/, by AdamW and by SFW, and remove its hidden units. A minute or two."""

import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparsefw import SFW, Sizes, constrain, curve

CONTEXT, WIDTH, HEADS, DEPTH = 64, 64, 4, 2
STEPS, BATCH, SHARES = 400, 32, (0.3, 0.5, 0.7, 0.9)
LR = {"AdamW": 4e-3, "SFW": 4e-3}  # the best of each

ROOT = Path(__file__).parents[1]
TEXT = "".join(path.read_text() for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))])
CHARACTERS = sorted(set(TEXT))
CODES = torch.tensor([CHARACTERS.index(character) for character in TEXT])
TRAIN, TEST = CODES[: int(0.9 * len(CODES))], CODES[int(0.9 * len(CODES)) :]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.head_dim = HEADS, WIDTH // HEADS
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).reshape(batch, length, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(heads.transpose(1, 2).reshape(batch, length, -1))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.norm2, self.fc1, self.fc2 = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = (
            nn.Embedding(len(CHARACTERS), WIDTH),
            nn.Parameter(0.02 * torch.randn(1, CONTEXT, WIDTH)),
        )
        self.blocks = nn.Sequential(*(Block() for _ in range(DEPTH)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(CHARACTERS), bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, characters: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.token(characters) + self.position[:, : characters.shape[1]])))


def draw(generator: torch.Generator, count: int = BATCH) -> tuple[Tensor, Tensor]:
    """Return pieces of the text, and the same pieces one character further on."""
    starts = torch.randint(len(TRAIN) - CONTEXT - 1, (count, 1), generator=generator)
    pieces = TRAIN[starts + torch.arange(CONTEXT + 1)]
    return pieces[:, :-1], pieces[:, 1:]


@torch.no_grad()
def perplexity(net: nn.Module) -> float:
    pieces = TEST[: len(TEST) // (CONTEXT + 1) * (CONTEXT + 1)].view(-1, CONTEXT + 1)
    return math.exp(F.cross_entropy(net.eval()(pieces[:, :-1]).flatten(0, 1), pieces[:, 1:].flatten()))


def train(method: str, kind: str = "neurons", over_sizes: bool = False, steps: int = STEPS, seed: int = 0) -> nn.Module:
    """Return a network trained by "AdamW" or "SFW"; over sizes, half of every batch sees a network without some of its units."""
    torch.manual_seed(seed)
    net, generator = GPT(), torch.Generator().manual_seed(seed)
    example = TRAIN[:CONTEXT].repeat(2, 1)
    if method == "AdamW":
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(net.parameters(), lr=LR[method])
    else:  # what is constrained by SFW, the rest by AdamW
        groups = constrain(net, kind, example=example, steps=steps, report=None)
        optimizer = SFW(groups, lr=LR[method], rest="adamw", weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda i: min(10 * (i + 1) / steps, 1 - i / steps)
    )  # warm-up
    sizes = Sizes(net, kind, example=example) if over_sizes else None
    for step in range(steps):
        x, y = draw(generator)
        net.train().zero_grad()
        if sizes is None:
            F.cross_entropy(net(x).flatten(0, 1), y.flatten()).backward()
        else:
            with sizes.mixed(step):
                F.cross_entropy(net(x).flatten(0, 1), y.flatten()).backward()
        optimizer.step()
        schedule.step()
    return net


def calibration() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [draw(generator, 64)[0] for _ in range(4)]


if __name__ == "__main__":
    for method in ("AdamW", "SFW"):
        net = train(method)
        print(f"trained once by {method}, hidden units removed, never retrained: perplexity and size")
        print(curve(net, "neurons", SHARES, form="removed", calibration=calibration(), evaluate=perplexity))
