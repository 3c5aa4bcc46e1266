"""The fused step of an optimizer: whether there is one, and when it must be built again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sparsefw.optim import fused
from sparsefw.optim.master_weights import State
from sparsefw.optim.nonfinite import GradientCheck
from sparsefw.optim.stacks import Stack

if TYPE_CHECKING:
    from sparsefw.optim.fused.fused_step import FusedStep

# The keys of a group for which a fused step is built; its numbers, such as the learning rate, are read in every step.
_BUILT_FOR = ("region", "rest", "rescale", "dampening", "score_momentum")


class FusedStepCache:
    """Keeps the fused step from one optimizer step to the next.

    wanted   None: where possible; True: where possible, but an error on a device without kernels; False: never
    """

    def __init__(self, wanted: bool | None) -> None:
        self._wanted = wanted
        self.current: FusedStep | None = None
        self._key: tuple[list[Any], ...] = ()
        self._captured: list[FusedStep] = []  # a graph uses their memory as long as it lives

    def step_for(
        self,
        groups: Sequence[dict[str, Any]],
        stacks_of: Callable[[int], list[Stack]],
        params: list[Tensor],
        names: list[str],
        state_of: Callable[[Tensor], State],
        gradient_check: GradientCheck,
    ) -> FusedStep | None:
        """Return the fused step of these tensors; build it again if tensors, groups, regions or rules have changed.

        Args:
            groups: the param groups.
            stacks_of: index of a constrained group -> its stacks.
            params: the tensors that have gradients.
            names: their names.
            state_of: parameter -> its state.
            gradient_check: counts non-finite gradients.

        Returns:
            None where the plain step must be taken.
        """
        device = params[0].device
        if not self._is_possible(device):
            return None
        from sparsefw.optim.fused.fused_step import build_fused_step, can_fuse

        if not can_fuse(params):
            return None
        stacks = {index: stacks_of(index) for index, group in enumerate(groups) if group["region"] is not None}
        key = _key_of(groups, stacks, params)
        capturing = params[0].is_cuda and torch.cuda.is_current_stream_capturing()
        if self.current is None or key != self._key or not self.current.is_up_to_date(state_of):
            if capturing:
                raise RuntimeError(
                    "take one ordinary step before capturing a CUDA graph: the fused step is not built yet"
                )
            tally = gradient_check.tally(tuple(names), device)
            self.current = build_fused_step(groups, stacks, params, state_of, tally)
            self._key = key
        if capturing and self.current not in self._captured:
            self._captured.append(self.current)
        return self.current

    def _is_possible(self, device: torch.device) -> bool:
        if self._wanted is False or torch.compiler.is_compiling() or (self._wanted is None and device.type != "cuda"):
            return False
        has_kernels = fused.available(device)
        if self._wanted and not has_kernels:
            raise ValueError(f"fused=True needs Triton and an NVIDIA GPU since Ampere; the parameters are on {device}")
        return has_kernels


def _key_of(
    groups: Sequence[dict[str, Any]], stacks: dict[int, list[Stack]], params: list[Tensor]
) -> tuple[list[Any], ...]:
    """Return everything for which a fused step is built."""
    momenta = [group["momentum"] for group in groups]
    # Groups of equal momentum share a launch, and those without momentum have no buffer; the number itself is read in every step.
    momentum_pattern = [(momenta.index(momentum), momentum == 0) for momentum in momenta]
    return (
        [(id(p), p.device, p.shape, p.stride()) for p in params],
        [id(stack) for stacks_of_group in stacks.values() for stack in stacks_of_group],
        [[id(group), *(group[key] for key in _BUILT_FOR)] for group in groups],
        momentum_pattern,
    )
