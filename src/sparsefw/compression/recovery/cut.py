"""A cut: what a kind makes of a network, before and while it is recovered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from sparsefw.compression.artifact.plan import Edit, Untouched


@dataclass(frozen=True)
class Solution:
    """The least-squares weight of one layer, per group, with the system it solves: weight @ gram = moments."""

    weight: Tensor  # (g, n, f)
    gram: Tensor  # (g, f, f), with the ridge
    moments: Tensor  # (g, n, f), with the ridge


@dataclass(frozen=True)
class Cut:
    """A compressed copy, what was done to it, and what refitting needs to know.

    rows    layer -> which of the dense layer's outputs it still computes, for layers that lost some
    write   writes a least-squares solution into a layer; returns the weight that it now has, as matrices
    """

    model: nn.Module
    edits: tuple[Edit, ...]
    untouched: tuple[Untouched, ...]
    rows: dict[str, list[int]]
    write: Callable[[str, Solution], Tensor]
