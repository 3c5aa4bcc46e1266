"""State dicts of SFW: regions and rules as plain values, and checks of those that are loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sparsefw.geometry import Ball
from sparsefw.optim.groups import Group, check_group
from sparsefw.optim.master_weights import State
from sparsefw.optim.rescale import Rescale


def plain_groups(groups: Sequence[Group]) -> list[Group]:
    """Return the param groups with regions and rules as dictionaries of plain values."""
    return [
        {**group, "region": group["region"] and group["region"].plain(), "rescale": group["rescale"].plain()}
        for group in groups
    ]


def restored_groups(state_dict: Group, live: list[Group], names: list[list[str]], defaults: Group) -> list[Group]:
    """Return the saved param groups with regions and rules as objects.

    Args:
        state_dict: the saved one.
        live: the groups of the optimizer that loads it.
        names: the names of the parameters of each of them.
        defaults: the keys that every group has.

    Raises:
        ValueError: the saved groups are not of SFW, or do not fit the live ones.
    """
    saved = state_dict.get("param_groups")
    if not isinstance(saved, list) or not isinstance(state_dict.get("state"), dict):
        raise ValueError("not the state_dict of an optimizer: it must have a list 'param_groups' and a dict 'state'")
    if [len(group["params"]) for group in saved] != [len(group["params"]) for group in live]:
        raise ValueError(
            "the param groups of the state_dict differ from those of this optimizer: was the model or `constrain` changed?"
        )
    groups = []
    for index, (group, current) in enumerate(zip(saved, live, strict=True)):
        _check_names(index, group, current, names[index])
        missing = sorted(set(defaults) - set(group))
        if missing:
            raise ValueError(f"param group {index} of the state_dict is not one of SFW: it has no {', '.join(missing)}")
        if not isinstance(group["region"], (dict, type(None))):
            kind = type(group["region"]).__name__
            raise ValueError(f"param group {index} of the state_dict: region must be a dict or None, got a {kind}")
        region = group["region"] and Ball.from_plain(group["region"])
        restored = {**group, "region": region, "rescale": Rescale.from_plain(group["rescale"])}
        check_group({**restored, "params": current["params"]}, names[index])
        _check_shapes(state_dict["state"], group, current, names[index])
        groups.append(restored)
    return groups


def _check_names(index: int, saved: Group, live: Group, names: list[str]) -> None:
    saved_names = saved.get("param_names")
    if saved_names is not None and live.get("param_names") not in (None, saved_names):
        other = next(saved_name for saved_name, name in zip(saved_names, names, strict=True) if saved_name != name)
        raise ValueError(
            f"param group {index} of the state_dict contains {other}, but not the same group of this optimizer: "
            "was the model or `constrain` changed?"
        )


def _check_shapes(state: Mapping[Any, State], saved: Group, live: Group, names: list[str]) -> None:
    for i, p, name in zip(saved["params"], live["params"], names, strict=True):
        momentum = state.get(i, {}).get("momentum")
        if momentum is not None and momentum.shape != p.shape:
            raise ValueError(
                f"{name}: its shape is {tuple(p.shape)}, that of its saved momentum {tuple(momentum.shape)}"
            )


def copy_exact_tensors(
    saved: Mapping[Any, State], ids: Sequence[Any], params: Sequence[Tensor], state: Mapping[Tensor, State]
) -> None:
    """Copy saved tensors into the state in their own dtype: torch's load_state_dict casts them to that of the parameter.

    Args:
        saved: the saved state, by id.
        ids: the id of each parameter.
        params: the parameters.
        state: the state of the optimizer, by parameter.
    """
    for p, i in zip(params, ids, strict=True):
        for key, value in saved.get(i, {}).items():
            if isinstance(value, Tensor) and value.shape == p.shape:  # in the memory format of the weight
                state[p][key] = torch.empty_like(p, dtype=value.dtype).copy_(value)
            elif isinstance(value, Tensor):
                state[p][key] = value.to(device=p.device, copy=True)
