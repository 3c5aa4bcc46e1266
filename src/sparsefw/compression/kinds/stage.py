"""A stage: how one kind cuts a network. Each kind has one, registered under its name."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from torch import Tensor, nn

from sparsefw.compression.allocate import Allocation, Uniform, Unit
from sparsefw.compression.artifact.plan import Edit, Keep, Untouched
from sparsefw.compression.reasons import Cause, because
from sparsefw.compression.recovery.calibration import Calibration
from sparsefw.compression.recovery.cut import Cut, Solution
from sparsefw.compression.recovery.refit import on_support
from sparsefw.compression.settings import Selection, Settings
from sparsefw.compression.structure.attention import PlainAttention
from sparsefw.compression.structure.channels import Side
from sparsefw.compression.structure.layers import AnyConv, as_matrices, set_weight
from sparsefw.kinds import Kind


@dataclass(frozen=True)
class StageRequest:
    """The inputs of a stage: the kind, the network, and how the user wants it cut.

    allocation   how much each layer loses
    others       the other kinds that the user asked for by name
    """

    kind: Kind
    model: nn.Module
    example: Any
    calibration: Calibration | None
    settings: Settings
    allocation: Allocation
    others: frozenset[Kind] = frozenset()

    @property
    def score(self) -> str:
        """The name of the score by which units are ranked: the user's choice, or the kind's."""
        score = self.settings.score or self.kind.score
        assert score is not None, f"{self.kind.name} has no score"
        return score


class Stage(ABC):
    """(model, how many of each unit are kept) -> a new, smaller model."""

    # Allocations whose level is the ratio that is removed: no level has to be searched for.
    by_ratio: ClassVar[tuple[type[Allocation], ...]] = (Uniform,)

    layer_word: ClassVar[str] = "layer"  # the layers that it compresses, in messages

    @property
    def has_one_size(self) -> bool:
        """Return whether the kind itself decides how much is removed."""
        return False

    @classmethod
    @abstractmethod
    def of(cls, request: StageRequest) -> Stage:
        """Return the stage for this request."""

    def __init__(
        self, model: nn.Module, allocation: Allocation, selection: Selection, untouched: Sequence[Untouched] = ()
    ) -> None:
        self.model = model
        self.allocation = allocation
        self.selection = selection
        self.untouched = tuple(untouched)
        self.units: list[Unit] = []

    def counts(self, level: float) -> list[int]:
        """Return how many each unit keeps at a level; at level 0 all, without rounding. There may be no units."""
        if level == 0 or not self.units:
            return [unit.count for unit in self.units]
        kept = self.allocation.kept(self.units, level)
        return [unit.rounded(count, self.selection.round_to) for unit, count in zip(self.units, kept, strict=True)]

    def removed_share(self, counts: Sequence[int]) -> float:
        """Return the fraction of all units' magnitudes that is removed if each keeps this many."""
        total = sum(unit.count for unit in self.units)
        return 1 - sum(counts) / total if total else 0.0

    def cut(self, counts: Sequence[int]) -> Cut:
        """Return a compressed copy in which every unit keeps this many."""
        edits = self.edits(counts)
        small = copy.deepcopy(self.model)
        for edit in edits:
            edit.apply(small)
        by_layer = {edit.layer: edit for edit in edits if not isinstance(edit, Keep)}

        def write(name: str, solution: Solution) -> Tensor:
            return self.write(small.get_submodule(name), by_layer.get(name), solution)

        untouched = (*self.untouched, *self.remarks(edits), *self.too_coarse(counts))
        return Cut(small, tuple(edits), untouched, kept_rows(self.model, edits), write)

    def too_coarse(self, counts: Sequence[int]) -> list[Untouched]:
        """Return the units that keep everything because they have no more than the multiple to which counts are rounded."""
        multiple = self.selection.round_to
        untouched = []
        for unit, count in zip(self.units, counts, strict=True):
            if count == unit.count > 1 and unit.rounded(1, multiple) == unit.count:
                channels = unit.count * unit.width
                reason = because(Cause.TOO_FEW_FOR_MULTIPLE, count=channels, multiple=multiple)
                untouched.append(Untouched.because(unit.name, reason))
        return untouched

    @abstractmethod
    def edits(self, counts: Sequence[int]) -> list[Edit]:
        """Return the edits with which every unit keeps this many."""

    def remarks(self, edits: Sequence[Edit]) -> list[Untouched]:
        """Return what the user should know about these edits."""
        return []

    def write(self, layer: nn.Module, edit: Any, solution: Solution) -> Tensor:
        """Write the refitted weight into a layer of the copy that had this edit; return it as matrices. Zeros stay zeros."""
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


def stage_for(request: StageRequest) -> Stage:
    """Return the stage that cuts the kind of this request."""
    return STAGES[request.kind.family].of(request)


def kept_rows(dense: nn.Module, edits: Sequence[Edit]) -> dict[str, list[int]]:
    """Map every layer that lost outputs to the dense layer's outputs that it still computes."""
    rows: dict[str, list[int]] = {}
    modules = dict(dense.named_modules())
    for edit in edits:
        if not isinstance(edit, Keep):
            continue
        if edit.side == Side.OUT:
            rows[edit.layer] = list(edit.kept)
        elif edit.side == Side.HEADS:
            rows |= _rows_of_heads(edit.layer, modules[edit.layer], edit.kept)
        elif edit.side == Side.EACH:
            module = modules.get(edit.layer)  # None for a bare parameter
            if isinstance(module, AnyConv):
                times = module.out_channels // module.in_channels
                rows[edit.layer] = [channel * times + i for channel in edit.kept for i in range(times)]
    return rows


def _rows_of_heads(name: str, block: Any, heads: Sequence[int]) -> dict[str, list[int]]:
    """Map the projections that write the heads of an attention block to the outputs that belong to these heads."""
    outputs = [head * block.head_dim + i for head in heads for i in range(block.head_dim)]
    if isinstance(block, PlainAttention):
        return {f"{name}.{part}": outputs for part in ("query", "key", "value")}
    width = block.num_heads * block.head_dim
    return {f"{name}.qkv": [part * width + output for part in range(3) for output in outputs]}
