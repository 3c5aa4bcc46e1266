"""A stage: one kind's way to cut a network. Each kind has one, registered under its name."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from torch import Tensor, nn

from sparsefw.compression.allocate import Allocation, Uniform, Unit
from sparsefw.compression.artifact.plan import Edit, Keep, Untouched
from sparsefw.compression.recovery.calibration import Calibration
from sparsefw.compression.recovery.cut import Cut, Solution
from sparsefw.compression.recovery.refit import on_support
from sparsefw.compression.settings import Selection, Settings
from sparsefw.compression.structure.attention import PlainAttention
from sparsefw.compression.structure.channels import EACH, HEADS, OUT
from sparsefw.compression.structure.layers import AnyConv, as_matrices, set_weight
from sparsefw.kinds import Kind

COMPUTED = "its weight is computed from others"


@dataclass(frozen=True)
class Job:
    """What a stage is made of: the kind, the network, and how the user wants it cut.

    others: the kinds that are asked for by name beside this one.
    """

    kind: Kind
    model: nn.Module
    example: Any
    calibration: Calibration | None
    settings: Settings
    allocation: Allocation
    others: frozenset[Kind] = frozenset()


class Stage(ABC):
    """(model, how many of each unit are kept) -> a new, smaller model."""

    # Allocations whose level is the ratio that is removed, so that none has to be searched for.
    by_ratio: ClassVar[tuple[type[Allocation], ...]] = (Uniform,)

    layer_word: ClassVar[str] = "layer"  # what it looks for

    @property
    def has_one_size(self) -> bool:
        """Whether how much is removed is not for the user to say."""
        return False

    @classmethod
    @abstractmethod
    def of(cls, job: Job) -> Stage:
        """The stage for this job."""

    def __init__(
        self, model: nn.Module, allocation: Allocation, selection: Selection, untouched: Sequence[Untouched] = ()
    ) -> None:
        self.model, self.allocation, self.selection = model, allocation, selection
        self.untouched = tuple(untouched)
        self.units: list[Unit] = []

    def counts(self, level: float) -> list[int]:
        """How many each unit keeps at a level; level 0 leaves everything, rounding included. There may be no unit left."""
        if level == 0 or not self.units:
            return [unit.count for unit in self.units]
        kept = self.allocation.kept(self.units, level)
        return [unit.rounded(count, self.selection.round_to) for unit, count in zip(self.units, kept, strict=True)]

    def removed_share(self, counts: Sequence[int]) -> float:
        total = sum(unit.count for unit in self.units)
        return 1 - sum(counts) / total if total else 0.0

    def cut(self, counts: Sequence[int]) -> Cut:
        """A copy on which the choice is carried out."""
        edits, small = self.edits(counts), copy.deepcopy(self.model)
        for edit in edits:
            edit.apply(small)
        by_layer = {edit.layer: edit for edit in edits if not isinstance(edit, Keep)}

        def write(name: str, solution: Solution) -> Tensor:
            return self.write(small.get_submodule(name), by_layer.get(name), solution)

        untouched = (*self.untouched, *self.remarks(edits), *self.too_coarse(counts))
        return Cut(small, tuple(edits), untouched, kept_rows(self.model, edits), write)

    def too_coarse(self, counts: Sequence[int]) -> list[Untouched]:
        """Units that keep everything because they have no more than the multiple to which counts are rounded."""
        multiple = self.selection.round_to
        return [
            Untouched(unit.name, f"has {unit.count * unit.width}, no more than round_to={multiple} keeps")
            for unit, count in zip(self.units, counts, strict=True)
            if count == unit.count > 1 and unit.rounded(1, multiple) == unit.count
        ]

    @abstractmethod
    def edits(self, counts: Sequence[int]) -> list[Edit]:
        """What keeping so many of each unit means for the layers."""

    def remarks(self, edits: Sequence[Edit]) -> list[Untouched]:
        """What the user should know about this choice."""
        return []

    def write(self, layer: nn.Module, edit: Any, solution: Solution) -> Tensor:
        """Give a layer of the copy, which had this edit, its refitted weight; returns it, as matrices. Zeros stay zeros."""
        weight = on_support(solution, as_matrices(layer) != 0)
        set_weight(layer, weight)
        return weight


S = TypeVar("S", bound=type[Stage])
STAGES: dict[str, type[Stage]] = {}


def cuts(*families: str) -> Callable[[S], S]:
    """Class decorator: this stage cuts the kinds of these families."""

    def register(stage: S) -> S:
        STAGES.update(dict.fromkeys(families, stage))
        return stage

    return register


def stage_for(job: Job) -> Stage:
    return STAGES[job.kind.family].of(job)


def kept_rows(dense: nn.Module, edits: Sequence[Edit]) -> dict[str, list[int]]:
    """For every layer that lost outputs: which of the dense layer's outputs it still computes."""
    rows: dict[str, list[int]] = {}
    for edit in edits:
        if not isinstance(edit, Keep):
            continue
        if edit.side == OUT:
            rows[edit.layer] = list(edit.kept)
        elif edit.side == EACH and edit.layer in dict(dense.named_modules()):
            module = dense.get_submodule(edit.layer)
            if isinstance(module, AnyConv):
                times = module.out_channels // module.in_channels
                rows[edit.layer] = [channel * times + i for channel in edit.kept for i in range(times)]
        elif edit.side == HEADS:
            block: Any = dense.get_submodule(edit.layer)
            own = [head * block.head_dim + i for head in edit.kept for i in range(block.head_dim)]
            inner = block.num_heads * block.head_dim
            if isinstance(block, PlainAttention):
                rows.update({f"{edit.layer}.{part}": own for part in ("query", "key", "value")})
            else:
                rows[f"{edit.layer}.qkv"] = [part * inner + row for part in range(3) for row in own]
    return rows
