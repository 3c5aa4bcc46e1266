"""Master weights: the float32 copies of half-precision weights, to which steps are applied."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from sparsefw.geometry.precision import HALF

State = dict[str, Any]


def working_weight(p: Tensor, state: State) -> Tensor:
    """Return the tensor that a step changes: the weight, or its float32 copy in the state, updated if the weight was changed."""
    if p.dtype not in HALF:
        return p
    if "master" not in state:
        state["master"] = p.detach().float()
    elif state["master"].device != p.device or state["master"].stride() != p.stride():
        state["master"] = torch.empty_like(p, dtype=torch.float32).copy_(state["master"])
    master = state["master"]
    master.copy_(torch.where(p == master.to(p.dtype), master, p.float()))
    return master


def write_back(params: Iterable[Tensor], states: Iterable[State]) -> None:
    """Round the float32 copies into the half-precision weights."""
    for p, state in zip(params, states, strict=True):
        if p.dtype in HALF:
            p.copy_(state["master"])


def state_buffer(state: State, key: str, like: Tensor) -> Tensor:
    """Return state[key] with the dtype and device of `like`; zeros where there is none yet."""
    buffer = state.get(key)
    if buffer is None:
        state[key] = torch.zeros_like(like)
    elif buffer.device != like.device or buffer.dtype != like.dtype:
        state[key] = buffer.to(like)
    return state[key]
