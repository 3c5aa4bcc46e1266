"""Decisions: where a network turns numbers into choices, such as which boxes to keep; one network decides, others follow it.

A detector keeps its best candidates and drops those that overlap. Two networks that compute the same up to rounding may choose
differently among candidates that are equally good, and everything behind the choice looks different then. So one of them decides,
the other one follows its decisions, and what they decide by is compared as if it were an output: a choice hides no difference,
not even one that leaves nothing to compare behind it.

A decision is an operation on floating-point numbers that gives whole numbers, truth values or a number of Python: topk, sort,
nms, a comparison, item().
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

# They give whole numbers that no choice depends on: places of maxima, tensors of some shape, the state of a kernel.
_UNDECIDED = ("pool", "_like", "new_", "attention", "rnn", "lstm")


@dataclass(frozen=True)
class Decision:
    """One decision of a network.

    operation   what decided, by name; by number for one that was read from a file, which knows no grounds
    grounds     the floating-point numbers that it decided by
    choice      the whole numbers, truth values and numbers of Python that it gave
    """

    operation: str
    grounds: tuple[Tensor, ...]
    choice: tuple[Any, ...]

    def can_lead(self, other: Decision) -> bool:
        """Return whether the other decision is the same one of another network, by as many numbers."""
        if self.operation == number_of(other.operation):
            sizes = [(_size(mine), _size(its)) for mine, its in zip(self.choice, other.choice, strict=False)]
            return len(self.choice) == len(other.choice) and all(its != 0 or mine == 0 for mine, its in sizes)
        alike = [t.shape for t in self.grounds] == [t.shape for t in other.grounds]
        return self.operation == other.operation and alike and len(self.choice) == len(other.choice)


class Decisions(TorchDispatchMode):
    """The decisions that are made within the block, in order; with a leader, its choices are made in place of the own ones.

    Decisions by numbers of another shape, such as a maximum over channels of which fewer are left, are made anew, and so are
    those that the leader did not make, such as what a network computes once in its first run.
    """

    def __init__(self, leader: Decisions | None = None) -> None:
        super().__init__()
        self.made: list[Decision] = []
        self.followed: list[tuple[Decision, Decision]] = []  # a decision of the leader, and the own one
        self._leader = leader
        self._next = 0  # of the leader's decisions

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and out.is_floating_point():
            return out
        grounds = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor) and t.is_floating_point()]
        operation = str(func)
        if not grounds or func._schema.is_mutable or any(word in operation for word in _UNDECIDED):
            return out
        leaves, structure = tree_flatten(out)
        places = [i for i, leaf in enumerate(leaves) if _is_choice(leaf)]
        if not places:
            return out
        # Copies: what follows may change them in place.
        own = Decision(operation, tuple(t.detach().clone() for t in grounds), tuple(_copy(leaves[i]) for i in places))
        choice = self._choice(own)
        self.made.append(Decision(operation, own.grounds, choice))
        for place, chosen in zip(places, choice, strict=True):
            leaves[place] = _copy(chosen) if isinstance(leaves[place], Tensor) else _number(chosen)
        return tree_unflatten(leaves, structure)

    def _choice(self, own: Decision) -> tuple[Any, ...]:
        """Return the leader's choice where it decides the same; else the own."""
        if self._leader is None or self._next == len(self._leader.made):
            return own.choice
        led = self._leader.made[self._next]
        if led.operation not in (own.operation, number_of(own.operation)):
            return own.choice
        self._next += 1
        if not led.can_lead(own):
            return own.choice
        if led.operation == own.operation:
            self.followed.append((led, own))
        return led.choice

    @property
    def grounds(self) -> tuple[list[Tensor], list[Tensor]]:
        """The numbers that decisions were made by, the leader's and the own, where they were followed."""
        pairs = [pair for led, own in self.followed for pair in zip(led.grounds, own.grounds, strict=True)]
        return [a for a, _ in pairs], [b for _, b in pairs]


def decided(made: Iterable[tuple[int, tuple[Any, ...]]]) -> Decisions:
    """Return a leader that made these choices, in order, each by the operation of a number."""
    leader = Decisions()
    leader.made = [Decision(str(number), (), choice) for number, choice in made]
    return leader


def number_of(operation: str) -> str:
    """Return the number of an operation, the same on every machine, in digits."""
    return str(zlib.crc32(operation.encode()))


def _size(chosen: Any) -> int:
    """Return 0 for a number, else how many axes it has, and one."""
    return chosen.ndim + 1 if isinstance(chosen, Tensor) and chosen.ndim else 0


def _is_choice(leaf: Any) -> bool:
    if isinstance(leaf, Tensor):
        return not (leaf.is_floating_point() or leaf.is_complex())
    return isinstance(leaf, (bool, int, float))


def _number(chosen: Any) -> Any:
    return chosen.item() if isinstance(chosen, Tensor) else chosen


def _copy(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, Tensor) else leaf
