"""A cut network: a copy that a kind has made smaller, before and during recovery."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor, nn

from sparsefw.compression.artifact.plan import Edit, Untouched


@dataclass(frozen=True)
class Solution:
    """The least-squares weight of one layer, per group, with the system it solves: weight @ gram = moments."""

    weight: Tensor  # (g, n, f)
    gram: Tensor  # (g, f, f), with the ridge
    moments: Tensor  # (g, n, f), with the ridge


@dataclass(frozen=True)
class CutNetwork:
    """A compressed copy, its edits, and the inputs of its refit.

    rows          layer -> the dense layer's outputs that it still computes, for layers that lost some
    write_refit   write a least-squares solution into the layer of this name; return its new weight, as matrices
    scales        layer -> the factor of every output, once matched moments have changed its weight
    """

    model: nn.Module
    edits: tuple[Edit, ...]
    untouched: tuple[Untouched, ...]
    rows: dict[str, list[int]]
    write_refit: Callable[[str, Solution], Tensor]
    scales: dict[str, Tensor] = field(default_factory=dict)
