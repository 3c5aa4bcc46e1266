"""Param groups of SFW: what is checked when one is added, and the way into its region."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sparsefw.geometry import Ball
from sparsefw.optim.rescale import RULES, Rescale
from sparsefw.optim.stacks import layout_of
from sparsefw.optim.weights import working_dtype

Group = dict[str, Any]


def blocks_of(group: Group) -> list[list[Tensor]]:
    """The tensors of each feasible point: one block of all tensors where they are coupled, else a block per tensor."""
    return [list(group["params"])] if group["coupled"] else [[p] for p in group["params"]]


def axes_of(group: Group) -> list[int]:
    """The group axis of each tensor of a block."""
    if group["axes"] is not None:
        return list(group["axes"])
    return [0] * (len(group["params"]) if group["coupled"] else 1)


def check_group(group: Group, names: list[str]) -> None:
    """TypeError or ValueError, in one line that names the parameter or the key, where the group cannot be stepped."""
    region = group["region"]
    if region is not None and not isinstance(region, Ball):
        raise TypeError(f"region must be a Ball from sparsefw.geometry or None, got {type(region).__name__}")
    for p, name in zip(group["params"], names, strict=True):
        if p.is_complex() or not p.is_floating_point():
            raise TypeError(f"{name}: SFW optimizes real floating-point parameters, not {p.dtype}")
        if type(p.data).__module__.startswith("torch.distributed"):
            raise TypeError(f"{name}: sharded parameters (DTensor) are not supported: an oracle needs the whole weight")
    _check_hyperparameters(group)
    if region is None:
        return
    for block, label in zip(blocks_of(group), [" + ".join(names)] if group["coupled"] else names, strict=True):
        try:
            region.count(layout_of(region, block, axes_of(group)).shape)
        except ValueError as error:
            raise ValueError(f"{label}: {error}") from None


def _check_hyperparameters(group: Group) -> None:
    if not isinstance(group["rescale"], Rescale):
        raise TypeError(f"rescale must be one of {', '.join(r + '()' for r in RULES)}, got {group['rescale']!r}")
    if group["rest"] not in ("sgd", "adamw"):
        raise ValueError(f"rest must be 'sgd' or 'adamw', got {group['rest']!r}")
    for key in ("lr", "momentum", "dampening", "weight_decay"):
        if not isinstance(group[key], Tensor) and not group[key] >= 0:
            raise ValueError(f"{key} must not be negative, got {group[key]}")
    if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
        raise ValueError("nesterov needs a momentum above 0 and no dampening")
    expected = len(group["params"]) if group["coupled"] else 1
    if group["axes"] is not None and len(group["axes"]) != expected:
        raise ValueError(f"axes needs {expected} entries here: one per tensor of a block, got {list(group['axes'])}")


@torch.no_grad()
def pull_inside(group: Group) -> None:
    """Scale blocks that start outside of their region onto its boundary: Frank-Wolfe keeps inside what is inside."""
    region = group["region"]
    if region is None:
        return
    for block in blocks_of(group):
        if any(p.is_meta for p in block):
            continue
        layout = layout_of(region, block, axes_of(group))
        point = block[0].new_empty(layout.shape, dtype=working_dtype(block[0].dtype))
        for view, p in zip(layout.views(point), block, strict=True):
            view.copy_(p)
        if bool(point.norm() * region.gauge.widest(region.count(point.shape)) <= region.radius):
            continue  # inside by a bound that costs no SVD
        norm = region.norm(point)
        if bool(norm > region.radius):
            for p in block:
                p.mul_((region.radius / norm).to(p.dtype))
