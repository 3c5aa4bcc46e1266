"""Param groups of SFW: their blocks, the checks when one is added, and the scaling of its weights into the region."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sparsefw.geometry import Ball, Groups, Spectrum
from sparsefw.optim.layout import layout_of
from sparsefw.optim.master_weights import State
from sparsefw.optim.rescale import RESCALES, Horizon, Rescale

Group = dict[str, Any]
_REST_ONLY = ("weight_decay", "nesterov", "rest")
SGD = "sgd"
ADAMW = "adamw"
RESTS = (SGD, ADAMW)  # the optimizers of groups without a region
DEFAULT_LR = {SGD: 0.1, ADAMW: 0.002}  # for AdamW: benchmarks/transformer_sizes.py


def blocks_of(group: Group) -> list[list[Tensor]]:
    """Return the tensors of each feasible point: one block of all tensors where they are coupled, else a block per tensor."""
    return [list(group["params"])] if group["coupled"] else [[p] for p in group["params"]]


def axes_of(group: Group) -> list[int]:
    """Return the group axis of each tensor of a block."""
    if group["axes"] is not None:
        return list(group["axes"])
    return [0] * (len(group["params"]) if group["coupled"] else 1)


def check_keys(group: Group, defaults: Group) -> None:
    """Before defaults are filled in, raise ValueError on misspelt keys, and on keys without effect on a constrained group."""
    known = ["params", "param_names", *defaults]
    for key in group:
        close = difflib.get_close_matches(key, known, n=1, cutoff=0.8) if key not in known else []
        if close:  # other unknown keys belong to schedulers and frameworks
            raise ValueError(f"unknown param group key {key!r}; did you mean {close[0]!r}?")
    if group.get("region") is not None:
        idle = [key for key in _REST_ONLY if group.get(key, defaults[key]) != defaults[key]]
        if idle:
            raise ValueError(
                f"{', '.join(idle)}: without effect on a group with a region, which decays by Frank-Wolfe steps"
            )


def sized_momentum(groups: Any) -> float | None:
    """Return the momentum for which `constrain` sized the regions of these groups; None if it sized none."""
    sized = [g for g in groups if isinstance(g, dict) and isinstance(g.get("rescale"), Horizon) and "momentum" in g]
    return sized[0]["momentum"] if sized else None


def check_arguments(groups: Any, rescale: Rescale | None, momentum: float | None) -> None:
    """Raise ValueError where an argument is given for all groups, but every constrained group has its own value."""
    constrained = [g for g in groups if isinstance(g, dict) and g.get("region") is not None]
    rules = [g["rescale"] for g in constrained if "rescale" in g]
    if rescale is not None and rules and len(rules) == len(constrained):
        raise ValueError(
            f"rescale={rescale} has no effect: the groups have their own rule, {type(rules[0]).__name__}; the paper's steps "
            "are those of constrain(..., w=...) without steps"
        )
    for sized in (g["momentum"] for g in constrained if isinstance(g.get("rescale"), Horizon) and "momentum" in g):
        if isinstance(momentum, (int, float)) and sized != momentum:
            raise ValueError(
                f"momentum={momentum!r}, but the regions were sized for {sized:g}: "
                "pass the same value to constrain(..., momentum=...)"
            )


def check_group(group: Group, names: list[str]) -> None:
    """Raise TypeError or ValueError, naming the parameter or the key, where the group cannot be stepped."""
    region = group["region"]
    if region is not None and not isinstance(region, Ball):
        raise TypeError(f"region must be a Ball from sparsefw.geometry or None, got {type(region).__name__}")
    for p, name in zip(group["params"], names, strict=True):
        _check_parameter(p, name)
    _check_hyperparameters(group)
    if region is None:
        return
    if group["score_momentum"] and not (isinstance(region.view, Groups) and region.view.rows):
        raise ValueError(f"score_momentum={group['score_momentum']} has no effect on {region}: it does not choose rows")
    if group["axes"] is not None and not group["coupled"] and not isinstance(region.view, (Groups, Spectrum)):
        raise ValueError(f"axes has no effect on {region}: it has neither groups nor rows")
    for block, label in zip(blocks_of(group), [" + ".join(names)] if group["coupled"] else names, strict=True):
        try:
            region.count(layout_of(region, block, axes_of(group)).shape)
        except ValueError as error:
            raise ValueError(f"{label}: {error}") from None


def _check_parameter(p: Tensor, name: str) -> None:
    if isinstance(p, nn.parameter.UninitializedParameter):
        raise ValueError(f"{name}: a lazy parameter has no shape yet; run the model once before creating the optimizer")
    if p.is_complex() or not p.is_floating_point():
        raise TypeError(f"{name}: SFW optimizes real floating-point parameters, not {p.dtype}")
    if _is_sharded(p):
        raise TypeError(f"{name}: sharded parameters (DTensor) are not supported: an oracle needs the whole weight")


def _is_sharded(p: Tensor) -> bool:
    """Whether the tensor is a DTensor; one can exist only after its module, which is slow to import, has been imported."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(p.data, module.DTensor)


def _check_hyperparameters(group: Group) -> None:
    if not isinstance(group["rescale"], Rescale):
        rules = ", ".join(f"{name}({', '.join(rule.required_arguments())})" for name, rule in RESCALES.items())
        raise TypeError(f"rescale must be one of {rules}, got {group['rescale']!r}")
    if group["rest"] not in RESTS:
        raise ValueError(f"rest must be {' or '.join(map(repr, RESTS))}, got {group['rest']!r}")
    for key in ("lr", "momentum", "dampening", "weight_decay", "adam_eps", "score_momentum"):
        value = group[key]
        number = isinstance(value, (int, float)) or (key == "lr" and isinstance(value, Tensor) and value.numel() == 1)
        if not (number and 0 <= value < float("inf")):
            raise ValueError(f"{key} must be a finite number, at least 0, got {value!r}")
    if not group["score_momentum"] < 1:
        raise ValueError(f"score_momentum must be below 1, got {group['score_momentum']!r}")
    betas = group["adam_betas"]
    pair = isinstance(betas, (tuple, list)) and len(betas) == 2
    if not (pair and all(isinstance(beta, (int, float)) and 0 <= beta < 1 for beta in betas)):
        raise ValueError(f"adam_betas must be two numbers in [0, 1), got {betas!r}")
    if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
        raise ValueError("nesterov needs a momentum above 0 and no dampening")
    expected = len(group["params"]) if group["coupled"] else 1
    axes = group["axes"]
    if axes is not None and not (isinstance(axes, (tuple, list)) and len(axes) == expected):
        raise ValueError(f"axes must be a list with one axis for each tensor of a block, {expected} here, got {axes!r}")


@torch.no_grad()
def pull_inside(group: Group, names: list[str]) -> dict[str, float]:
    """Scale blocks outside of their region onto its boundary; Frank-Wolfe steps then stay inside.

    A block that is outside by rounding only is left alone: a trained weight on the boundary must not be touched when its training
    is resumed.

    Returns:
        The factor of each scaled block, by the name of its first tensor.
    """
    scaled: dict[str, float] = {}
    for p, name in zip(group["params"], names, strict=True):
        if not p.is_meta and not bool(p.isfinite().all()):
            raise ValueError(f"{name}: contains NaN or inf before the first step")
    region = group["region"]
    if region is None:
        return scaled
    for block, name in zip(blocks_of(group), names, strict=False):
        if any(p.is_meta for p in block):
            continue
        layout = layout_of(region, block, axes_of(group))
        point = layout.gathered(block)
        if bool(region.contains_all_of_norm(point.norm(), point.shape)):
            continue
        if not bool(region.contains(point, tolerance=tolerance(block[0].dtype))):
            # Leave room for rounding, which must not lead out again.
            inside = region.pull_inside(point) * (1 - torch.finfo(block[0].dtype).eps)
            scaled[name] = float(inside.norm() / point.norm())
            for view, p in zip(layout.views(inside), block, strict=True):
                p.copy_(view)
    return scaled


def tolerance(dtype: torch.dtype) -> float:
    """Return how far rounding alone may carry a weight of this dtype beyond the boundary, relative to the radius."""
    return max(1e-5, float(torch.finfo(dtype).eps))


def params_with_gradients(
    group: Group, names: list[str], state_of: Callable[[Tensor], State]
) -> tuple[list[Tensor], list[str]]:
    """Return the parameters of a group that have gradients, and their names.

    Raises:
        TypeError: a gradient is sparse or differentiable.
        ValueError: a parameter has changed its shape, or a coupled block has only some of its gradients.
    """
    pairs = [(p, name) for p, name in zip(group["params"], names, strict=True) if p.grad is not None]
    for p, name in pairs:
        state = state_of(p)
        shape_before = state["momentum"].shape if "momentum" in state else p.shape
        if shape_before != p.shape:
            raise ValueError(
                f"{name}: its shape was {tuple(shape_before)} and is now {tuple(p.shape)}; create a new optimizer"
            )
        if p.grad.is_sparse:
            raise TypeError(f"{name}: SFW needs dense gradients; make the layer with sparse=False")
        if p.grad.requires_grad:
            raise TypeError(f"{name}: SFW's step is not differentiable; call backward() without create_graph=True")
    stepped = [name for _, name in pairs]
    if group["coupled"] and 0 < len(pairs) < len(names):
        missing = sorted(set(names) - set(stepped))
        raise ValueError(
            f"the tensors of a coupled block need gradients in the same step: {stepped[0]} has one, {', '.join(missing)} has none"
        )
    return [p for p, _ in pairs], stepped
