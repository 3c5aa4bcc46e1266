"""Sticky scores: rows are chosen by their norms averaged over steps, so that the choice changes less often.

    s <- rho s + (1 - rho) norms(m)         the k rows of largest s may grow

The vertex is then the best one on these rows: feasible, but not the best of all.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sparsefw.geometry.select import top_k_mask
from sparsefw.optim.master_weights import State, state_buffer


def update_scores(states: Sequence[State], norms: Tensor, rho: float, healthy: Tensor | None) -> Tensor:
    """Average this step's norms into the scores (b, n), which each block keeps in its state, and return them.

    They start at 0, which does not change their order.
    """
    buffers = [state_buffer(state, "scores", row) for state, row in zip(states, norms.unbind(), strict=True)]
    old = torch.stack(buffers)
    scores = rho * old + (1 - rho) * norms
    scores = scores if healthy is None else torch.where(healthy, scores, old)
    for buffer, row in zip(buffers, scores.unbind(), strict=True):
        buffer.copy_(row)
    return scores


def keep_best_scored(norms: Tensor, scores: Tensor, k: int) -> Tensor:
    """Return the norms with all but those of the k largest scores set to 0."""
    return torch.where(top_k_mask(scores, k), norms, 0)
