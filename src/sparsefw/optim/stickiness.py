"""Stickiness: rows are chosen by their norms averaged over steps, so that fewer of them take turns.

    s <- rho s + (1 - rho) norms(m)         the k rows of largest s may grow

The vertex is then the best one on these rows: feasible, but no longer the best of all.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sparsefw.geometry.select import top_k_mask
from sparsefw.optim.master_weights import State, state_buffer


def averaged(states: Sequence[State], norms: Tensor, rho: float, healthy: Tensor | None) -> Tensor:
    """The scores of every block (b, n) after this step, kept in its state. They start at 0, which changes no order."""
    buffers = [state_buffer(state, "scores", row) for state, row in zip(states, norms.unbind(), strict=True)]
    old = torch.stack(buffers)
    scores = rho * old + (1 - rho) * norms
    scores = scores if healthy is None else torch.where(healthy, scores, old)
    for buffer, row in zip(buffers, scores.unbind(), strict=True):
        buffer.copy_(row)
    return scores


def only_best(norms: Tensor, scores: Tensor, k: int) -> Tensor:
    """The norms with all but those of the k largest scores set to 0."""
    return torch.where(top_k_mask(scores, k), norms, 0)
