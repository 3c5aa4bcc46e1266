"""The step of all layers at once, by the kernels of this package.

A plan is made for an optimizer's tensors as they are: which lie where, under which region, cut into which pieces. It stands for
the plain step of the same tensors (sfw.py and kernels.py, its twin in the tests) and is made anew when they change.
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
from sparsefw.optim.fused.bundles import Bundle, Entries, Member, Rows
from sparsefw.optim.fused.common import rule_number
from sparsefw.optim.fused.directions import Directions
from sparsefw.optim.fused.network import Group, Network, Part, Rest
from sparsefw.optim.kernels import is_dense
from sparsefw.optim.master_weights import State
from sparsefw.optim.stacks import Stack

_MOST_ROWS = 16_384  # of one block: they are chosen by one program
_MOST_ENTRIES = 2**31 - 1
_MOST_DIRECTIONS = 1024  # their Gram matrix is factorised by one program
_MOST_AT_ONCE = 2**26  # weights of one bundle: kernels count in 32 bits


@dataclass(frozen=True)
class Plan:
    """`covered`: the param groups that it steps. The others take their plain steps, with its verdict on the gradients."""

    network: Network
    parts: list[Part]
    covered: frozenset[int]

    def check(self) -> tuple[Tensor, list[Tensor]]:
        """(whether all gradients are finite, on the device; their norms)."""
        with self._device():
            self.network.check()
            return self.network.bad == 0, list(self.network.norms.unbind())

    def step(self) -> None:
        with self._device():
            for part in self.parts:
                part.step(self.network)

    def is_of(self, state_of: Callable[[Tensor], State]) -> bool:
        """Whether the momenta are still those it was made for: not cleared, reloaded or moved."""
        found = zip(self.network.params, self.network.momentum, strict=True)
        return all(m is None or state_of(p).get("momentum") is m for p, m in found)

    def _device(self) -> AbstractContextManager[Any]:
        """Triton launches on the current device, which need not be that of the tensors."""
        device = self.network.device
        return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def suits(params: Sequence[Tensor]) -> bool:
    """Whether all tensors are of the kind that kernels take: float32, dense, on one device, their gradients alike."""
    device = params[0].device
    return all(
        p.dtype == g.dtype == torch.float32
        and p.device == g.device == device
        and is_dense(p)
        and _lie_alike(p, g)
        and 0 < p.numel() <= _MOST_ENTRIES
        for p, g in ((p, p.grad) for p in params)
        if g is not None
    )


def _lie_alike(p: Tensor, g: Tensor) -> bool:
    """Whether entries lie in memory in the same order; the stride of an axis of length 1 means nothing."""
    return all(a == b for a, b, size in zip(p.stride(), g.stride(), p.shape, strict=True) if size > 1)


def plan_for(
    groups: Sequence[Group],
    stacks: Mapping[int, Sequence[Stack]],
    params: list[Tensor],
    state_of: Callable[[Tensor], State],
    tally: Tensor,
) -> Plan:
    """A plan for the tensors that have gradients; `tally` counts, per tensor, the steps in which its were not finite."""
    network = Network(params, tally)
    parts: list[Part] = []
    covered: set[int] = set()
    bundles: dict[tuple[Any, ...], list[Member]] = {}
    sizes: Counter[tuple[Any, ...]] = Counter()
    for index, group in enumerate(groups):
        if group["dampening"] or group["score_momentum"]:
            continue
        if group["region"] is None and group["rest"] == "sgd":
            found = [p for p in group["params"] if p.grad is not None]
            if found:
                parts.append(Rest(network, group, found, [state_of(p) for p in found]))
            covered.add(index)
        elif group["region"] is not None and (kind := _kind(group, stacks[index])) is not None:
            covered.add(index)
            alike = (kind, group["region"].gauge.tip, group["momentum"], rule_number(group["rescale"]))
            for stack in stacks[index]:
                key = (*alike, sizes[alike] // _MOST_AT_ONCE)
                sizes[alike] += stack.momentum.numel()
                for i, block in enumerate(stack.blocks):
                    member = Member(group, stack, i, [network.number[p] for p in block])
                    bundles.setdefault(key, []).append(member)
    parts += [kind(network, members) for (kind, *_), members in bundles.items()]
    return Plan(network, parts, frozenset(covered))


def _has_whole_rows(stack: Stack) -> bool:
    """Whether every row is one stretch of memory, and there are not too many."""
    return (
        stack.by_rows
        and stack.layout.shape[0] <= _MOST_ROWS
        and all(rows.is_contiguous() for block in stack.blocks for rows in stack.layout.rows(block))
    )


def _kind(group: Group, stacks: Sequence[Stack]) -> type[Bundle] | None:
    """The bundle that steps the blocks of a group; None where none can."""
    region = group["region"]
    view, gauge = region.view, region.gauge
    complete = all(p.grad is not None for stack in stacks for block in stack.blocks for p in block)
    tips = (Tip.PROPORTIONAL, Tip.FLAT) if isinstance(view, Elements) else (Tip.PROPORTIONAL,)
    if not complete or gauge.tip not in tips or rule_number(group["rescale"]) is None:
        return None
    if isinstance(view, Groups):
        return Rows if all(_has_whole_rows(stack) for stack in stacks) else None
    alone = all(stack.layout.packing == "alone" for stack in stacks)
    if isinstance(view, Elements):
        return Entries if alone and view.axis is None else None
    if isinstance(view, Spectrum):
        counts = [region.count(stack.layout.shape) for stack in stacks]
        follows = all(view.follows(gauge, count) and gauge.support(count) <= _MOST_DIRECTIONS for count in counts)
        return Directions if alone and follows else None
    return None
