"""A stage: how one kind cuts a network. Each family of kinds has one, registered under the name of the family."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from torch import Tensor, nn

from sparsefw.compression.allocate import Allocation, Uniform, UnitSet, smallest_level
from sparsefw.compression.artifact.plan import Edit, Keep, Plan, Untouched
from sparsefw.compression.bisection import bisect
from sparsefw.compression.in_place.restriction import InPlaceCut
from sparsefw.compression.reasons import Cause, because
from sparsefw.compression.recovery.calibration import Calibration
from sparsefw.compression.recovery.cut_network import CutNetwork, Solution
from sparsefw.compression.recovery.refit import on_support
from sparsefw.compression.settings import Selection, Settings
from sparsefw.compression.structure.channels import Channels, Side, is_norm_of_channels
from sparsefw.compression.structure.copies import copied
from sparsefw.compression.structure.layers import AnyConv, as_matrices, set_weight
from sparsefw.kinds import Kind


@dataclass(frozen=True)
class StageRequest:
    """The inputs of a stage: the kind, the network, and how the user wants it cut.

    allocation   how much each layer loses
    others       the other kinds that the user asked for by name
    for_target   the fraction to remove is chosen to meet a target
    """

    kind: Kind
    model: nn.Module
    example: Any
    calibration: Calibration | None
    settings: Settings
    allocation: Allocation
    others: frozenset[Kind] = frozenset()
    for_target: bool = False

    @property
    def score(self) -> str:
        """The name of the score by which units are ranked: the user's choice, or the kind's."""
        score = self.settings.score or self.kind.score
        assert score is not None, f"{self.kind.name} has no score"
        return score


@dataclass(frozen=True)
class StageRecord:
    """What a stage has found out about a network: with it and the weights, the network is cut without an example or data.

    form         "removed" or "masked"
    allocation   how much each layer loses, with what was measured for it
    selection    the layers chosen by name, and the multiple to which counts are rounded
    untouched    the layers that cannot lose units
    units        name and magnitudes of each set, which order its units; none where the weights give them
    channels     what belongs to each set, for kinds that remove channels
    """

    form: str
    allocation: Allocation
    selection: Selection
    untouched: tuple[Untouched, ...]
    units: tuple[tuple[str, Tensor], ...] = ()
    channels: tuple[Channels, ...] = ()


class Stage(ABC):
    """How to cut one model: the sets of units that can be removed, and a smaller copy for any number kept of each."""

    # Allocations whose level is the ratio that is removed: no level has to be searched for.
    by_ratio: ClassVar[tuple[type[Allocation], ...]] = (Uniform,)

    layer_word: ClassVar[str] = ""  # what messages call the layers that it compresses; empty: as the kind says
    cuts_without_waiting: ClassVar[bool] = (
        True  # in place: the host never waits for the device, so a CUDA graph can capture it
    )

    @property
    def has_one_size(self) -> bool:
        """Return whether the kind alone decides how much is removed, as a pattern N:M does."""
        return False

    @classmethod
    @abstractmethod
    def of(cls, request: StageRequest) -> Stage:
        """Return the stage for this request."""

    @classmethod
    @abstractmethod
    def restored(cls, kind: Kind, model: nn.Module, record: StageRecord) -> Stage:
        """Return the stage that gave the record, for the same model; it cuts, but neither refits nor cuts in place."""

    def record(self, form: str) -> StageRecord:
        """Return what `restored` needs besides the model."""
        units = tuple((units.name, units.magnitudes) for units in self.unit_sets)
        return StageRecord(form, self.allocation, self.selection, self.untouched, units)

    def __init__(
        self, model: nn.Module, allocation: Allocation, selection: Selection, untouched: Sequence[Untouched] = ()
    ) -> None:
        self.model = model
        self.allocation = allocation
        self.selection = selection
        self.untouched = tuple(untouched)
        self.unit_sets: list[UnitSet] = []  # may stay empty

    def require_units(self, kind: Kind) -> None:
        """Raise ValueError if no layer can lose units of this kind."""
        if self.unit_sets:
            return
        reasons = "; ".join(f"{entry.layer}: {entry.reason}" for entry in self.untouched[:3])
        wanted = self.layer_word or kind.sought
        chosen = " among those chosen by include/exclude" if self.selection.chooses else ""
        none = f"there is no {wanted}{chosen}"
        raise ValueError(f"there is nothing to compress by {kind.name}: {reasons or none}")

    def counts(self, level: float) -> list[int]:
        """Return how many units each set keeps at a level; at level 0 all, without rounding."""
        if level == 0 or not self.unit_sets:
            return [units.count for units in self.unit_sets]
        kept = self.allocation.kept(self.unit_sets, level)
        round_to = self.selection.round_to
        return [units.rounded(count, round_to) for units, count in zip(self.unit_sets, kept, strict=True)]

    def counts_for(self, ratio: float) -> list[int]:
        """Return how many units of each set stay if `ratio` of all units are removed; with round_to, never more than that."""
        if self.has_one_size or isinstance(self.allocation, self.by_ratio):
            return self.counts(ratio)
        if self.selection.round_to > 1:
            return self.counts(self._last_level(lambda share: share <= ratio + 1e-9))
        largest = self.removed_share(self.counts(1.0))
        level = smallest_level(lambda level: self.removed_share(self.counts(level)) >= min(ratio, largest) - 1e-9)
        return self.counts(1.0 if level is None else level)

    def _last_level(self, allowed: Callable[[float], bool]) -> float:
        """Return the largest level, to within bisection, at which the removed share is allowed."""

        def is_too_much(level: float) -> bool:
            return not allowed(self.removed_share(self.counts(level)))

        return bisect(is_too_much, 0.0, 1.0, 30)[0] if is_too_much(1.0) else 1.0

    def removed_share(self, counts: Sequence[int]) -> float:
        """Return the fraction of all units that is removed if each set keeps this many."""
        total = sum(units.count for units in self.unit_sets)
        return 1 - sum(counts) / total if total else 0.0

    def cut(self, counts: Sequence[int]) -> CutNetwork:
        """Return a compressed copy in which each set keeps this many units."""
        plan = self.plan(counts)
        edits = plan.edits
        small = copied(self.model)
        plan.apply(small)
        by_layer = {edit.layer: edit for edit in edits if not isinstance(edit, Keep)}

        def write_refit(name: str, solution: Solution) -> Tensor:
            return self.write_refit(small.get_submodule(name), by_layer.get(name), solution)

        return CutNetwork(small, edits, plan.untouched, kept_rows(self.model, edits), write_refit)

    def plan(self, counts: Sequence[int]) -> Plan:
        """Return the edits with which each set keeps this many units, and the layers left as they are."""
        edits = tuple(self.edits(counts))
        return Plan(edits, (*self.untouched, *self.notes(edits), *self.too_coarse(counts)))

    def too_coarse(self, counts: Sequence[int]) -> list[Untouched]:
        """Return the sets that keep all units because they have no more than the multiple to which counts are rounded."""
        multiple = self.selection.round_to
        untouched = []
        for units, count in zip(self.unit_sets, counts, strict=True):
            if count == units.count > 1 and units.rounded(1, multiple) == units.count:
                channels = units.count * units.width
                reason = because(Cause.TOO_FEW_FOR_MULTIPLE, count=channels, multiple=multiple)
                untouched.append(Untouched.because(units.name, reason))
        return untouched

    @abstractmethod
    def edits(self, counts: Sequence[int]) -> list[Edit]:
        """Return the edits with which each set keeps this many units."""

    @abstractmethod
    def in_place(self, model: nn.Module) -> InPlaceCut:
        """Return how to cut a model of these layers in place, by its weights as they are at the moment."""

    def notes(self, edits: Sequence[Edit]) -> list[Untouched]:
        """Return notes for the user on layers with these edits."""
        return []

    def write_refit(self, layer: nn.Module, edit: Any, solution: Solution) -> Tensor:
        """Write the refitted weight into a layer of the copy; return it as matrices.

        Args:
            layer: The layer to write into. Entries that are 0 stay 0.
            edit: The edit that made the layer; None if it has none.
            solution: The unconstrained least-squares weight and its system.
        """
        weight = on_support(solution, as_matrices(layer) != 0)
        set_weight(layer, weight)
        return weight


S = TypeVar("S", bound=type[Stage])
STAGES: dict[str, type[Stage]] = {}


def registered_for(*families: str) -> Callable[[S], S]:
    """Register the decorated stage for all kinds of these families."""

    def register(stage: S) -> S:
        STAGES.update(dict.fromkeys(families, stage))
        return stage

    return register


def stage_for(request: StageRequest) -> Stage:
    """Return the stage that cuts the kind of this request."""
    return STAGES[request.kind.family].of(request)


def restored_stage(kind: Kind, model: nn.Module, record: StageRecord) -> Stage:
    """Return the stage of a kind for a dense model that was read from a file."""
    return STAGES[kind.family].restored(kind, model, record)


def kept_rows(dense: nn.Module, edits: Sequence[Edit]) -> dict[str, list[int]]:
    """Map every layer and norm that lost outputs to the dense layer's outputs that it still computes."""
    rows: dict[str, list[int]] = {}
    modules = dict(dense.named_modules())
    for edit in edits:
        if not isinstance(edit, Keep):
            continue
        if edit.side == Side.OUT:
            rows[edit.layer] = list(edit.kept)
        elif edit.side == Side.EACH:
            module = modules.get(edit.layer)  # None for a bare parameter
            if isinstance(module, AnyConv):
                times = module.out_channels // module.in_channels
                rows[edit.layer] = [channel * times + i for channel in edit.kept for i in range(times)]
            elif module is not None and is_norm_of_channels(module):
                rows[edit.layer] = list(edit.kept)
    return rows
