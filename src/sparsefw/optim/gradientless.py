"""Parameters without gradients: those that their model no longer has are an error, others are named after many steps."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from sparsefw.optim.groups import Group
from sparsefw.optim.training_warnings import SFWWarning
from sparsefw.text import listed

# Steps in a row without a gradient. One or two may be meant, such as before the first backward pass; a hundred may be, too, as
# for a branch that is trained later.
_FEW_STEPS = 3
_MANY_STEPS = 100

_MODELS: Any = WeakTensorKeyDictionary()  # a weak reference to the model of each parameter that `constrain` has seen


def remember_model(model: nn.Module) -> None:
    """Remember which model has these parameters."""
    reference = weakref.ref(model)
    for p in model.parameters():
        _MODELS[p] = reference


class GradientlessSteps:
    """Counts for each parameter its last steps in a row without a gradient; frozen ones are meant to have none."""

    def __init__(self) -> None:
        self._steps: dict[int, int] = {}  # by id of the parameter

    @torch.compiler.disable
    def count_step(self, groups: Sequence[Group], names_of: Callable[[int], list[str]]) -> None:
        """Count a step; RuntimeError if parameters have left their model, or if none at all had a gradient in some steps.

        Args:
            groups: all param groups of the optimizer.
            names_of: Returns the names of the parameters of the group with this index.
        """
        params = [pair for i, group in enumerate(groups) for pair in zip(group["params"], names_of(i), strict=True)]
        without = [(p, name) for p, name in params if p.grad is None and p.requires_grad]
        self._steps = {id(p): self._steps.get(id(p), 0) + 1 for p, _ in without}
        if not self._steps:
            return
        gone = [name for p, name in without if self._steps[id(p)] == _FEW_STEPS and _has_left_its_model(p)]
        if gone:
            raise RuntimeError(
                f"SFW: the model no longer has {listed(gone)}: it has other parameters in their place, as after "
                "fully_shard, load_state_dict(assign=True) or when a layer is replaced; call constrain and SFW when the model is "
                "complete"
            )
        if len(without) == len(params) and min(self._steps.values()) >= _FEW_STEPS:
            raise RuntimeError(
                f"SFW: in {_FEW_STEPS} steps, none of its parameters had a gradient, {listed([n for _, n in without])}: the "
                "backward pass does not reach them, or the model has others now; make SFW when the model is complete"
            )
        still = [name for p, name in without if self._steps[id(p)] == _MANY_STEPS]
        if still:
            warnings.warn(
                f"SFW: {listed(still)} had no gradient in {_MANY_STEPS} steps and did not move: the backward pass does not "
                "reach them; requires_grad_(False) says that this is meant",
                SFWWarning,
                stacklevel=4,
            )


def _has_left_its_model(p: Tensor) -> bool:
    """Whether the model that `constrain` has seen with this parameter still exists, without it."""
    reference = _MODELS.get(p)
    model = None if reference is None else reference()
    return model is not None and not any(p is other for other in model.parameters())
