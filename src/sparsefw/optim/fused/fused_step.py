"""The fused step: all layers at once, by the kernels of this package.

A fused step is built for an optimizer's tensors as they are: their addresses, their regions, and the pieces into which they are
cut. It replaces the plain step of the same tensors (constrained.py and kernels.py, its twin in the tests), and is built again
when they change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sparsefw.geometry import Elements, Groups, Spectrum
from sparsefw.geometry.gauges import Tip
from sparsefw.optim.fused.common import rule_number
from sparsefw.optim.fused.directions import DirectionsUpdate
from sparsefw.optim.fused.tensor_table import TensorTable
from sparsefw.optim.fused.updates import BlockUpdate, EntriesUpdate, FusedBlock, RowsUpdate, SGDUpdate, Update
from sparsefw.optim.groups import SGD, Group
from sparsefw.optim.kernels import is_dense
from sparsefw.optim.layout import Packing
from sparsefw.optim.master_weights import State
from sparsefw.optim.stacks import Stack

_MOST_ROWS = 16_384  # of one block: one program chooses among them
_MOST_ENTRIES = 2**31 - 1
_MOST_DIRECTIONS = 1024  # one program factorises their Gram matrix
_MOST_AT_ONCE = 2**26  # weights of one update: kernels count in 32 bits


@dataclass(frozen=True)
class FusedStep:
    """The launches of one optimizer step.

    table     the tensors that have gradients
    updates   what is launched, in order
    covered   the indices of the param groups that are stepped; all others take their plain steps
    """

    table: TensorTable
    updates: list[Update]
    covered: frozenset[int]

    def check(self) -> tuple[Tensor, list[Tensor]]:
        """Return whether all gradients are finite, on the device, and their norms."""
        with self._on_device():
            self.table.check_gradients()
            return self.table.bad == 0, list(self.table.norms.unbind())

    def step(self) -> None:
        """Step the covered groups; `check` must be called before."""
        with self._on_device():
            for update in self.updates:
                update.step(self.table)

    def is_up_to_date(self, state_of: Callable[[Tensor], State]) -> bool:
        """Whether the momentum buffers are still those it was built for: not cleared, reloaded or moved."""
        pairs = zip(self.table.params, self.table.buffers, strict=True)
        return all(buffer is None or state_of(p).get("momentum") is buffer for p, buffer in pairs)

    def _on_device(self) -> AbstractContextManager[Any]:
        """Make the tensors' device the current one, on which Triton launches."""
        device = self.table.device
        return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def can_fuse(params: Sequence[Tensor]) -> bool:
    """Whether kernels take these tensors: float32 and dense, on one device, with gradients of the same memory order."""
    device = params[0].device
    return all(
        p.dtype == g.dtype == torch.float32
        and p.device == g.device == device
        and is_dense(p)
        and _has_same_order(p, g)
        and 0 < p.numel() <= _MOST_ENTRIES
        for p, g in ((p, p.grad) for p in params)
        if g is not None
    )


def _has_same_order(p: Tensor, g: Tensor) -> bool:
    """Whether both have the same memory order; the stride of an axis of length 1 means nothing."""
    return all(a == b for a, b, size in zip(p.stride(), g.stride(), p.shape, strict=True) if size > 1)


def build_fused_step(
    groups: Sequence[Group],
    stacks: Mapping[int, Sequence[Stack]],
    params: list[Tensor],
    state_of: Callable[[Tensor], State],
    tally: Tensor,
) -> FusedStep:
    """Build the fused step of these tensors.

    Args:
        groups: the param groups.
        stacks: index of a constrained group -> its stacks.
        params: the tensors that have gradients.
        state_of: parameter -> its state.
        tally: counts, per tensor, the steps in which its gradient was not finite.
    """
    table = TensorTable(params, tally)
    updates: list[Update] = []
    covered: set[int] = set()
    blocks_by_key: dict[tuple[Any, ...], list[FusedBlock]] = {}
    sizes: Counter[tuple[Any, ...]] = Counter()
    for index, group in enumerate(groups):
        if group["dampening"] or group["score_momentum"]:
            continue
        if group["region"] is None and group["rest"] == SGD:
            covered.add(index)
            stepped = [p for p in group["params"] if p.grad is not None]
            if stepped:
                updates.append(SGDUpdate(table, group, stepped, [state_of(p) for p in stepped]))
        elif group["region"] is not None and (update := _update_for(group, stacks[index])) is not None:
            covered.add(index)
            alike = (update, group["region"].gauge.tip, group["momentum"], rule_number(group["rescale"]))
            for stack in stacks[index]:
                key = (*alike, sizes[alike] // _MOST_AT_ONCE)
                sizes[alike] += stack.momentum.numel()
                for i, block in enumerate(stack.blocks):
                    fused_block = FusedBlock(group, stack, i, [table.number[p] for p in block])
                    blocks_by_key.setdefault(key, []).append(fused_block)
    updates += [update(table, blocks) for (update, *_), blocks in blocks_by_key.items()]
    return FusedStep(table, updates, frozenset(covered))


def _has_whole_rows(stack: Stack) -> bool:
    """Whether every row is contiguous in memory, and one program can choose among all rows."""
    return (
        stack.by_rows
        and stack.layout.shape[0] <= _MOST_ROWS
        and all(rows.is_contiguous() for block in stack.blocks for rows in stack.layout.rows(block))
    )


def _update_for(group: Group, stacks: Sequence[Stack]) -> type[BlockUpdate] | None:
    """Return the update that can step the blocks of a group; None where none can."""
    region = group["region"]
    view, gauge = region.view, region.gauge
    complete = all(p.grad is not None for stack in stacks for block in stack.blocks for p in block)
    tips = (Tip.PROPORTIONAL, Tip.FLAT) if isinstance(view, Elements) else (Tip.PROPORTIONAL,)
    if not complete or gauge.tip not in tips or rule_number(group["rescale"]) is None:
        return None
    if isinstance(view, Groups):
        return RowsUpdate if all(_has_whole_rows(stack) for stack in stacks) else None
    alone = all(stack.layout.packing is Packing.ALONE for stack in stacks)
    if isinstance(view, Elements):
        return EntriesUpdate if alone and view.axis is None else None
    if isinstance(view, Spectrum):
        counts = [region.count(stack.layout.shape) for stack in stacks]
        follows = all(view.follows(gauge, count) and gauge.support(count) <= _MOST_DIRECTIONS for count in counts)
        return DirectionsUpdate if alone and follows else None
    return None
