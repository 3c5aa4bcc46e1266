"""The pipeline: what happens to a network on its way to a smaller one.

a private copy, attention made of plain layers, statistics recomputed
then for every kind that is asked for, each on the result of the one before:
    stage      what can be taken from which layer                         kinds/
    counts     how much of it stays, for a ratio or a target              allocate.py, target.py
    cut        a copy without the rest                                    structure/
    recover    weights fitted in closed form, or moments; statistics      recovery/
"""

from __future__ import annotations

import copy
import fnmatch
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from sparsefw.compression.allocate import ALLOCATIONS, SENSITIVITY, Sensitivity, smallest_level
from sparsefw.compression.artifact.plan import Edit, Plan, Unfuse, Untouched
from sparsefw.compression.cost import costs
from sparsefw.compression.kinds import Job, Stage, stage_for
from sparsefw.compression.latency import Table, estimate
from sparsefw.compression.progress import Progress, shown
from sparsefw.compression.recovery.batchnorm import has_batch_norm, recalibrate_
from sparsefw.compression.recovery.calibration import (
    Calibration,
    NotFiniteError,
    batch_size,
    device_of,
    mean_over_ranks,
    run,
)
from sparsefw.compression.recovery.cut import Cut
from sparsefw.compression.recovery.moments import match_moments
from sparsefw.compression.recovery.refit import refit as fit_to_dense
from sparsefw.compression.settings import Metric, Settings
from sparsefw.compression.structure.attention import heads_of, plain_attention
from sparsefw.compression.structure.batchnorm_pairs import norms_behind
from sparsefw.compression.structure.factorisation import is_standard
from sparsefw.compression.structure.layers import bias_of, call, evaluating, forward_order, is_layer, shared_layers
from sparsefw.compression.structure.removal import relative_gap
from sparsefw.compression.target import Target, least_compression, most_compression
from sparsefw.kinds import Kind, in_order
from sparsefw.layer_types import CONVOLUTIONS
from sparsefw.text import first_line

FEW = 32  # fewer calibration inputs than this are worth a remark
Amounts = Mapping[Kind, float]  # the fraction to remove


@dataclass(frozen=True)
class Found:
    """The level that meets a target, and what the search measured of the dense and of the chosen model."""

    level: float
    measured: dict[str, Any] = field(default_factory=dict)


class Pipeline:
    """A private copy of the model, ready to be compressed any number of times."""

    def __init__(
        self,
        model: nn.Module,
        example: Any,
        calibration: Iterable[Any] | None,
        settings: Settings,
        progress: Progress | bool | None = None,
    ) -> None:
        model = getattr(model, "_orig_mod", model)  # what torch.compile wraps
        if not isinstance(model, nn.Module):
            raise ValueError(f"compress needs a torch.nn.Module, got {type(model).__name__}")
        if isinstance(model, torch.jit.ScriptModule):
            raise ValueError("a TorchScript module cannot be taken apart: give the module that it was made from")
        _check_finite(model)
        self.settings, self.progress, self.source = settings, shown(progress), model
        self._stages: dict[tuple[Kind, frozenset[Kind]], Stage] = {}
        self.calibration = None if calibration is None else Calibration(calibration, device_of(model))
        if example is None and self.calibration is None:
            raise ValueError(
                "give calibration= (batches without labels, some hundred images), or at least one example= input: "
                "without calibration nothing is recovered after compression"
            )
        self.example = example if example is not None else self.calibration.example  # type: ignore[union-attr]
        self.dense = plain_attention(_copy(model))
        self.unfused = [
            Unfuse(n)
            for n, m in model.named_modules()
            if isinstance(m, nn.MultiheadAttention)
            and n
            and not isinstance(self.dense.get_submodule(n), nn.MultiheadAttention)
        ]
        self._check_globs()
        with evaluating(self.dense):
            run(self.dense, self.example, "example" if example is not None else "calibration")
        if self.calibration is not None:
            recalibrate_(self.dense, self.calibration)

    def _check_globs(self) -> None:
        """A pattern that matches nothing is a typo, and would protect or choose nothing."""
        names = [name for name, module in self.dense.named_modules() if is_layer(module) or heads_of(module)]
        for word, patterns in (
            ("include", self.settings.selection.include),
            ("exclude", self.settings.selection.exclude),
        ):
            for pattern in patterns:
                if names and not any(fnmatch.fnmatchcase(name, pattern) for name in names):
                    raise ValueError(f"{word}={pattern!r} matches no layer; there are {', '.join(names[:4])}, ...")

    def stage(self, kind: Kind, model: nn.Module, others: frozenset[Kind] = frozenset()) -> Stage:
        """One kind of compression of this model, beside others; of the dense one it is prepared once."""
        if model is not self.dense:
            return self._prepare(kind, model, others)
        if (kind, others) not in self._stages:
            self._stages[kind, others] = self._prepare(kind, model, others)
        return self._stages[kind, others]

    def _prepare(self, kind: Kind, model: nn.Module, others: frozenset[Kind]) -> Stage:
        settings = self.settings
        fixed = kind.allocation if settings.allocation in (None, SENSITIVITY) else settings.allocation
        allocation = ALLOCATIONS[fixed or ""]()
        stage = stage_for(Job(kind, model, self.example, self.calibration, settings, allocation, others))
        if not stage.units and model is self.dense:
            reasons = "; ".join(f"{u.layer}: {u.reason}" for u in stage.untouched[:3])
            none = f"there is no {stage.layer_word} among those chosen by include/exclude"
            raise ValueError(f"there is nothing to compress by {kind.name}: {reasons or none}")
        if settings.allocation == SENSITIVITY and stage.units:
            stage.allocation = Sensitivity(self.measure_damage(stage))
        return stage

    def measure_damage(
        self, stage: Stage, ratios: Sequence[float] = (0.25, 0.5, 0.75, 0.9, 0.99)
    ) -> dict[str, list[tuple[float, float]]]:
        """Relative change of the output on the first calibration batch when only one unit is compressed."""
        inputs = self.example if self.calibration is None else next(iter(self.calibration))
        with evaluating(stage.model):
            expected = call(stage.model, inputs)
        everything = stage.counts(0.0)
        damage: dict[str, list[tuple[float, float]]] = {}
        for i, unit in enumerate(stage.units):
            damage[unit.name] = []
            for ratio in ratios:
                counts = list(everything)
                counts[i] = unit.rounded(unit.count - round(ratio * unit.count), 1)
                small = stage.cut(counts).model
                with evaluating(small):
                    gap = relative_gap(expected, call(small, inputs))
                damage[unit.name].append((ratio, mean_over_ranks(gap)))
        return damage

    def counts(self, stage: Stage, ratio: float) -> list[int]:
        """How many of each unit stay so that `ratio` of all are removed."""
        if stage.has_one_size or isinstance(stage.allocation, stage.by_ratio):
            return stage.counts(ratio)
        most = stage.removed_share(stage.counts(1.0))
        level = smallest_level(lambda level: stage.removed_share(stage.counts(level)) >= min(ratio, most) - 1e-9)
        return stage.counts(1.0 if level is None else level)

    def carry_out(self, amounts: Amounts, recover: bool = True) -> tuple[nn.Module, Plan]:
        """All kinds in turn; with `recover`, each followed by refit or statistics. The plan says which share of each went."""
        model = self.dense
        removed = dict.fromkeys(amounts, 0.0)
        edits: list[Edit] = []
        untouched: list[Untouched] = []
        for kind in in_order(kind for kind, amount in amounts.items() if amount):
            stage = self.stage(kind, model, frozenset(amounts) - {kind})
            counts = self.counts(stage, amounts[kind])
            removed[kind] = stage.removed_share(counts)
            cut = stage.cut(counts)
            edits += cut.edits
            untouched += [u for u in cut.untouched if u not in untouched]
            if recover:
                untouched += [u for u in self.recover(model, [cut]) if u not in untouched]
            model = cut.model
        if edits:
            untouched += self.foreign({edit.layer for edit in edits})
        shares = {word: share for kind in removed for word, share in kind.request(removed[kind]).items()}
        plan = Plan((*self.unfused, *edits), tuple(untouched), {"removed": shares})
        return copy.deepcopy(model) if model is self.dense else model, plan

    def foreign(self, edited: set[str]) -> list[Untouched]:
        """Modules with weights of their own that no kind of compression knows, such as recurrent ones."""
        return [
            Untouched(name, f"{type(module).__name__} is not a layer that is compressed")
            for name, module in self.dense.named_modules()
            if name and name not in edited and not is_layer(module) and next(module.children(), None) is None
            and not name.endswith(".parametrizations.weight") and not any(e.startswith(f"{name}.") for e in edited)
            and any(p.ndim > 1 for p in module.parameters(recurse=False))
        ]  # fmt: skip

    def recover(self, dense: nn.Module, cuts: Sequence[Cut], refit: bool | None = None) -> list[Untouched]:
        """Refit, or for networks without BatchNorm matched moments; then BatchNorm statistics. Says what was left out."""
        if self.calibration is None:
            what = "neither weights nor BatchNorm statistics were" if has_batch_norm(dense) else "the weights were not"
            return [Untouched("calibration", f"none was given: {what} fitted to what is left", note=True)]
        order, left = self.refittable(dense)
        fitting = self.settings.refit if refit is None else refit
        if fitting:
            behind = norms_behind(dense, self.example)

            def absorbs_offset(name: str) -> bool:
                return name in behind or bias_of(dense.get_submodule(name)) is not None

            fit_to_dense(dense, cuts, order, self.calibration, absorbs_offset, self.progress)
        elif not has_batch_norm(dense):
            for cut in cuts:
                match_moments(dense, cut, order, self.calibration, self.progress)
        for cut in cuts:
            recalibrate_(cut.model, self.calibration)
        left = left if fitting or not has_batch_norm(dense) else []
        if self.calibration.count < FEW:
            said = (
                f"only {self.calibration.count} inputs, too few to fit weights and statistics well: give some hundred"
            )
            left = [Untouched("calibration", said, note=True), *left]
        return left

    def refittable(self, dense: nn.Module) -> tuple[list[str], list[Untouched]]:
        """Convolutions and linear layers that are called exactly once and own their weight."""
        calls: dict[str, int] = {}
        order = forward_order(dense, self.example, calls)
        shared = shared_layers(dense)
        reasons = {
            name: "not fitted: used more than once" if calls[name] > 1 else "not fitted: shares its weight" if name in shared
            else "not fitted: has a forward or hooks of its own" if not is_standard(dense.get_submodule(name))
            else "not fitted: transposed" if not isinstance(dense.get_submodule(name), (*CONVOLUTIONS, nn.Linear)) else ""
            for name in order
        }  # fmt: skip
        return [n for n in order if not reasons[n]], [Untouched(n, r, note=True) for n, r in reasons.items() if r]

    def level_for(
        self,
        goal: Target,
        amounts: Amounts,
        driven: Sequence[Kind],
        evaluate: Callable[[nn.Module], float] | None,
    ) -> Found:
        def compressed(level: float, recover: bool) -> nn.Module:
            return self.carry_out({**amounts, **dict.fromkeys(driven, level)}, recover)[0]

        if goal.metric == "drop":
            assert evaluate is not None
            metric = Metric(evaluate)
            measured = {0.0: mean_over_ranks(metric.of_dense(copy.deepcopy(self.dense)))}

            def drop(level: float) -> float:
                try:
                    measured[level] = mean_over_ranks(metric(compressed(level, True)))
                except NotFiniteError:  # so much is gone that nothing can be computed any more: too much
                    return math.inf
                return measured[0.0] - measured[level]

            level = most_compression(drop, goal)
            return Found(level, {"metric": [measured[0.0], measured[level]]})
        if goal.metric == "latency":
            table = Table(device_of(self.dense))
            whole = mean_over_ranks(estimate(self.dense, self.example, table))

            def milliseconds(level: float) -> float:
                return mean_over_ranks(estimate(compressed(level, False), self.example, table))

            level = least_compression(lambda level: milliseconds(level) / whole, goal)
            return Found(level, {"milliseconds": [whole, milliseconds(level)], "batch": batch_size(self.example)})
        name = {"params": "parameters"}.get(goal.metric, goal.metric)
        whole = getattr(costs(self.dense, self.example), name)

        def share(level: float, recover: bool = False) -> float:
            return float(getattr(costs(compressed(level, recover), self.example), name) / whole)

        level = least_compression(share, goal)
        # What an earlier stage recovered may change what a later one, allocated by its weights, takes from which layer.
        together = {*amounts, *driven}
        zeros = name == "bytes" and not all(kind.shrinks for kind in together)
        by_weights = self.settings.allocation not in (None, "uniform") or zeros
        if len(together) > 1 and by_weights and share(level, recover=True) > goal.value:
            level = least_compression(lambda level: share(level, recover=True), goal)
        return Found(level)


def _copy(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception as error:
        hint = "first torch.nn.utils.prune.remove(layer, 'weight'): " if _is_pruned(model) else ""
        raise ValueError(
            f"the model cannot be copied, and compress works on a copy: {hint}{first_line(error)}"
        ) from error


def _is_pruned(model: nn.Module) -> bool:
    return any(name.endswith("_mask") for name, _ in model.named_buffers())


def _check_finite(model: nn.Module) -> None:
    broken = [name for name, p in model.named_parameters() if p.is_floating_point() and not bool(p.isfinite().all())]
    # Buffers may hold -inf for a purpose: masks of attention.
    broken += [name for name, b in model.named_buffers() if b.is_floating_point() and bool(b.isnan().any())]
    if broken:
        raise ValueError(f"{broken[0]} contains NaN or inf; a model must be finite to be compressed")
