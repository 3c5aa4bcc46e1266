"""The table that `constrain` prints: a line for all blocks that are alike, and a line for all that is free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import nn

from sparsefw.geometry import NM, Ball
from sparsefw.layer_types import NORMALISATION
from sparsefw.text import counted, listed, text_table

MOST_LINES = 18  # of constrained blocks: with the lines below, the table fits on a screen
_PLURALS = {"bias or norm": "{} biases and norms", "embedding": "{} embeddings"}
_HEADER = ("parameter", "shape", "region", "k", "radius")


@dataclass(frozen=True)
class Block:
    """What got a region: a parameter, or coupled ones.

    names   the parameters, each with all of its names
    shape   that of the parameter; of coupled ones that of the matrix with a row per channel
    k       how many of how many units may grow, in words
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]
    region: Ball
    k: str
    coupled: bool = False

    @property
    def region_name(self) -> str:
        return f"{self.region.name} (coupled)" if self.coupled else self.region.name


def k_in_words(region: Ball, shape: tuple[int, ...]) -> str:
    """Return how many units of a tensor of this shape may grow, such as "3 of 10"."""
    gauge = region.gauge
    if isinstance(gauge, NM):
        return f"{gauge.n} of every {gauge.m}"
    count = region.count(shape)
    return f"{gauge.support(count)} of {count}"


@dataclass(frozen=True)
class Free:
    """A parameter without a region, and the reason where its kind would give it one."""

    name: str
    module: nn.Module
    local_name: str
    reason: str | None = None

    @property
    def word(self) -> str | None:
        """The word for what is counted instead of named; None for weights that are named."""
        is_norm = isinstance(self.module, NORMALISATION) or "norm" in type(self.module).__name__.lower()
        if is_norm or "bias" in self.local_name:
            return "bias or norm"
        return "embedding" if isinstance(self.module, nn.Embedding) else None


def region_table(blocks: Sequence[Block]) -> str:
    """Return a line per set of blocks that differ in their numbers only, such as layer1.0 and layer1.1."""
    alike: dict[tuple[object, ...], list[Block]] = {}
    for block in blocks:
        key = (tuple(map(_without_numbers, block.names)), block.shape, block.region_name, block.k)
        alike.setdefault(key, []).append(block)
    shown = list(alike.values())[:MOST_LINES]
    lines = [text_table([_HEADER, *map(_cells, shown)])] if shown else []
    hidden = len(blocks) - sum(map(len, shown))
    return "\n".join([*lines, *([f"... and {counted(hidden, 'more block')}"] if hidden else [])])


def _cells(alike: Sequence[Block]) -> list[str]:
    first = alike[0]
    more = f" and {len(first.names) - 1} more" if len(first.names) > 1 else ""
    radii = sorted(block.region.radius for block in alike)
    low, high = f"{radii[0]:.4g}", f"{radii[-1]:.4g}"
    shape = "x".join(map(str, first.shape))
    name = f"{merged_name([block.names[0] for block in alike])}{more}"
    times = f" x{len(alike)}" if len(alike) > 1 else ""
    return [f"{name}{times}", shape, first.region_name, first.k, low if low == high else f"{low} to {high}"]


def free_line(free: Sequence[Free]) -> str | None:
    """Return one line about all parameters without a region; None if there are none."""
    if not free:
        return None
    counts = Counter(entry.word for entry in free if entry.reason is None and entry.word is not None)
    parts = [_PLURALS[word].format(number) if number > 1 else f"1 {word}" for word, number in counts.items()]
    reasons: dict[str | None, list[str]] = {}
    for entry in free:
        if entry.reason is not None or entry.word is None:
            reasons.setdefault(entry.reason, []).append(entry.name)
    for reason, names in reasons.items():
        parts.append(f"{listed(merged_names(names))}{f' ({reason})' if reason else ''}")
    return f"free, by SGD or AdamW: {'; '.join(parts)}"


def merged_names(names: Iterable[str]) -> list[str]:
    """Return one pattern for all names that differ in their numbers only, with their count.

    >>> merged_names(["stem.weight", "blocks.0.fc.weight", "blocks.1.fc.weight"])
    ['stem.weight', 'blocks.*.fc.weight x2']
    """
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(_without_numbers(name), []).append(name)
    return [merged_name(group) + (f" x{len(group)}" if len(group) > 1 else "") for group in alike.values()]


def merged_name(names: Sequence[str]) -> str:
    """Return the name in which parts that differ are stars; all names have equally many parts.

    >>> merged_name(["layer1.0.conv2.weight", "layer1.1.conv2.weight"])
    'layer1.*.conv2.weight'
    """
    parts = zip(*(name.split(".") for name in names), strict=True)
    return ".".join(part[0] if len(set(part)) == 1 else "*" for part in parts)


def _without_numbers(name: str) -> str:
    return ".".join("*" if part.isdigit() else part for part in name.split("."))
