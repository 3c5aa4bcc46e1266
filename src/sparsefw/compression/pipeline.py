"""The pipeline: the steps from a network to a smaller one.

prepare    a private copy made of plain layers, statistics recomputed    preparation.py
then for every kind that is asked for, each on the result of the one before:
    stage      which units each layer can lose                            kinds/
    counts     how many of them stay, for a ratio                         allocate.py
    cut        a copy without the others                                  structure/
    recover    weights fitted in closed form, or moments; statistics      recovery/
    choose     which of the two follows the whole network better          recovery/choice.py

A target such as params=0.3 is a search for the ratio, around all of this: target.py.
"""

from __future__ import annotations

import copy
import fnmatch
import functools
import math
import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrize import type_before_parametrizations

from sparsefw.compression.allocate import ALLOCATIONS, Sensitivity
from sparsefw.compression.amounts import Amounts
from sparsefw.compression.artifact.plan import Edit, Keep, Plan, Split, Untouched
from sparsefw.compression.check import check_model
from sparsefw.compression.kinds import Stage, StageRequest, stage_for
from sparsefw.compression.not_run import advice, unfit
from sparsefw.compression.preparation import copy_of, prepared
from sparsefw.compression.progress import shown
from sparsefw.compression.reasons import Cause, Reason, because
from sparsefw.compression.recovery.agreement import WORST
from sparsefw.compression.recovery.batches import as_arguments
from sparsefw.compression.recovery.batchnorm import recalibrate_
from sparsefw.compression.recovery.calibration import Calibration, NotFiniteError, device_of, run
from sparsefw.compression.recovery.choice import Choice, Judge, judge_of
from sparsefw.compression.recovery.cut_network import CutNetwork
from sparsefw.compression.recovery.recover import recover
from sparsefw.compression.recovery.synthetic import synthetic_inputs
from sparsefw.compression.sensitivity import measure_sensitivity
from sparsefw.compression.settings import Settings
from sparsefw.compression.structure.channels import modes
from sparsefw.compression.structure.copies import copied
from sparsefw.compression.structure.decisions import Decisions
from sparsefw.compression.structure.gaps import relative_gap
from sparsefw.compression.structure.layers import call_on_copy, evaluating, hooks, is_layer, unwrapped
from sparsefw.compression.structure.token_ids import with_varied_ids
from sparsefw.compression.structure.trial_run import TrialRun
from sparsefw.kinds import Kind, in_order
from sparsefw.models import is_of_transformers
from sparsefw.recovery_words import AUTO, REFIT, SYNTHETIC
from sparsefw.text import listed

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
LARGEST_NOISE = 1e-3  # of the outputs in two runs: sums on a GPU may be taken in another order


class NotRunWarning(UserWarning):
    """Parts of a network are not run by the example: whether they fit the smaller network is not known."""


class Pipeline:
    """A private copy of a model, ready to be compressed any number of times.

    source        the model as given, which is never changed
    dense         the private copy, from which smaller networks are cut and to which they are fitted
    preparation   the edits that made the copy one of plain layers, and notes on them
    example       one input, to follow shapes and to try removals on: random token ids where those given are all equal
    calibration   the inputs to recover on; None if there are none
    driven        the kinds of which as much is removed as a target takes
    is_synthetic  whether these inputs were made from the statistics of batch norms: no data were seen
    """

    def __init__(self, model: nn.Module, settings: Settings, driven: Collection[Kind] = ()) -> None:
        model = unwrapped(model)
        check_model(model)
        self.settings = settings
        self.driven = frozenset(driven)
        self.progress = shown(settings.progress)
        self.source = model
        runs = copy_of(model)  # to see what it takes: the given model is never run
        self.is_synthetic = isinstance(settings.calibration, str) and settings.calibration == SYNTHETIC
        batches = settings.calibration
        if self.is_synthetic:
            batches = synthetic_inputs(runs, settings.example, self.progress)
        self.calibration = None if batches is None else Calibration(batches, device_of(model))
        if self.calibration is not None:
            self.calibration.suit(runs)
        if settings.example is not None:
            self.example = as_arguments(runs, settings.example)
        elif self.calibration is not None:
            self.example = self.calibration.example
        else:
            raise ValueError(
                "give calibration= (batches without labels, some hundred images), or at least one example= input: "
                "without calibration nothing is recovered after compression"
            )
        del runs
        name = "calibration" if settings.example is None else "example"
        self.dense, self.preparation = prepared(model, self.example, name)
        self.example, hides = with_varied_ids(self.dense, self.example)
        if hides is not None:
            note = Untouched.because(name, hides)
            self.preparation = replace(self.preparation, untouched=(*self.preparation.untouched, note))
        self._stages: dict[tuple[Kind, frozenset[Kind]], Stage] = {}
        self._check_patterns()
        called: set[str] = set()
        with evaluating(self.dense), hooks(self.dense, _noting(called)):
            _check_same(self.dense, self.example, name)
        self.not_run = _not_run(self.dense, called)
        if self.not_run:
            self._try_other_modes(called)
        if self.calibration is not None and not self.is_synthetic:  # the statistics that it holds are of real data
            recalibrate_(self.dense, self.calibration)

    def _try_other_modes(self, called: set[str]) -> None:
        """Run the layers that are called in training only, such as auxiliary classifiers; warn if some still are not."""
        for mode in modes(self.dense, self.example)[1:]:
            trial = copied(self.dense)
            with mode(trial), hooks(trial, _noting(called)):
                call_on_copy(trial, self.example)
        self.not_run = _not_run(self.dense, called)
        if self.not_run:
            names = [note.layer for note in self.not_run]
            warnings.warn(
                f"{listed(names)}: {self.not_run[0].reason}; {advice(self.dense, names, called)}",
                NotRunWarning,
                stacklevel=4,
            )

    def _check_patterns(self) -> None:
        """Refuse a pattern that matches no layer: it is a typo, and would protect or choose nothing."""
        names = [name for name, module in self.dense.named_modules() if is_layer(module)]
        selection = self.settings.selection
        for word, patterns in (("include", selection.include), ("exclude", selection.exclude)):
            for pattern in patterns:
                if names and not any(fnmatch.fnmatchcase(name, pattern) for name in names):
                    raise ValueError(f"{word}={pattern!r} matches no layer; there are {', '.join(names[:4])}, ...")

    def compress(self, amounts: Amounts, recovering: bool = True) -> tuple[nn.Module, Plan]:
        """Remove these fractions, kind by kind; return the new model and the plan, with the shares that were removed.

        Without `recovering`, nothing is fitted: for sizes alone.
        """
        model = self.dense
        removed = dict.fromkeys(amounts, 0.0)
        edits: list[Edit] = []
        untouched: list[Untouched] = []
        choices: dict[str, Choice] = {}
        for kind in in_order(kind for kind, amount in amounts.items() if amount):
            stage = self.stage(kind, model, frozenset(amounts) - {kind})
            counts = stage.counts_for(amounts[kind])
            removed[kind] = stage.removed_share(counts)
            if recovering:
                cut, notes, choice = self._recovered(model, stage, counts)
                choices |= {kind.name: choice} if choice else {}
            else:
                cut, notes = stage.cut(counts), []
            edits += cut.edits
            untouched += [entry for entry in (*cut.untouched, *notes) if entry not in untouched]
            model = cut.model
        if edits:
            named = {edit.layer for edit in edits} | {entry.layer for entry in untouched}
            untouched += _unknown_layers(self.dense, named)
            if is_of_transformers(self.dense) and any(isinstance(edit, (Keep, Split)) for edit in edits):
                untouched.append(Untouched.because("config", because(Cause.CONFIG_OF_DENSE)))
        not_run = [*unfit(self.dense, [note.layer for note in self.not_run], edits), *self.not_run]
        for note in not_run:
            untouched += [] if note.layer in {entry.layer for entry in untouched} else [note]
        shares = {word: share for kind in removed for word, share in kind.compress_arguments(removed[kind]).items()}
        request: dict[str, Any] = {"removed": shares}
        if choices:
            request |= {"refit": any(choice.chosen == REFIT for choice in choices.values())}
            request |= {"recovery": {name: choice.to_json() for name, choice in choices.items()}}
        before = self.preparation
        plan = Plan((*before.edits, *edits), (*untouched, *before.untouched), request)
        return copy.deepcopy(model) if model is self.dense else model, plan

    def stage(self, kind: Kind, model: nn.Module, others: frozenset[Kind] = frozenset()) -> Stage:
        """Return the stage that cuts this model by one kind, beside others; that of the dense model is made once."""
        if model is not self.dense:
            return self._make_stage(kind, model, others)
        if (kind, others) not in self._stages:
            self._stages[kind, others] = self._make_stage(kind, model, others)
        return self._stages[kind, others]

    def _make_stage(self, kind: Kind, model: nn.Module, others: frozenset[Kind]) -> Stage:
        allocation = ALLOCATIONS[self.settings.allocation or kind.allocation]()
        request = StageRequest(
            kind, model, self.example, self.calibration, self.settings, allocation, others, kind in self.driven
        )
        stage = stage_for(request)
        if model is self.dense:
            stage.require_units(kind)
        if isinstance(allocation, Sensitivity) and stage.unit_sets:
            inputs = self.example if self.calibration is None else next(iter(self.calibration))
            stage.allocation = measure_sensitivity(stage, inputs)
        return stage

    @functools.cached_property
    def judge(self) -> Judge | Reason | None:
        """What chooses the recovery, or the reason why nothing can; None if there is no choice to make."""
        if self.settings.refit != AUTO or self.calibration is None:
            return None
        return judge_of(self.dense, self.calibration)

    def recover(
        self,
        dense: nn.Module,
        cuts: Sequence[CutNetwork],
        refit: bool | None = None,
        fitting: Iterable[Any] | None = None,
    ) -> list[Untouched]:
        """Recover cuts of one model, in place; return notes.

        Args:
            dense: The model that they were cut from.
            cuts: The cuts.
            refit: None: as the settings say; where these leave it open, the weights are fitted.
            fitting: The inputs to fit weights on; None: all.
        """
        refit = bool(self.settings.refit) if refit is None else refit
        notes = recover(dense, cuts, self.example, self.calibration, refit, self.progress, fitting)
        if self.is_synthetic:
            notes.append(Untouched.because("calibration", because(Cause.SYNTHETIC)))
        if refit and isinstance(self.judge, Reason):
            notes.append(Untouched.because("calibration", self.judge))
        return notes

    def _recovered(
        self, model: nn.Module, stage: Stage, counts: list[int]
    ) -> tuple[CutNetwork, list[Untouched], Choice | None]:
        """Cut and recover; return the cut, notes and, if there was one, the choice between two recoveries."""
        judge = self.judge
        if not isinstance(judge, Judge):
            cut = stage.cut(counts)
            return cut, self.recover(model, [cut]), None
        cuts: list[CutNetwork] = []
        notes: list[list[Untouched]] = []
        agreements: list[float] = []
        for refit in (False, True):
            cuts.append(stage.cut(counts))
            try:
                notes.append(self.recover(model, cuts[-1:], refit, judge.fitting))
                agreements.append(judge.agreement(cuts[-1].model))
            except NotFiniteError:
                if agreements == [WORST]:
                    raise
                notes.append([])
                agreements.append(WORST)
        choice = judge.choice(*agreements)
        chosen = choice.chosen == REFIT
        return cuts[chosen], notes[chosen], choice


def _check_same(model: nn.Module, example: Any, name: str) -> None:
    """Refuse a model whose outputs for the same input differ: no trial and no comparison would show anything.

    Where they differ, another run follows the decisions of the first: on a GPU, rounding decides among equally good candidates.
    Random numbers may give equal outputs by chance; then what decides is compared.
    """
    before = torch.get_rng_state()
    with Decisions() as decided:
        first = TrialRun(run(model, example, name), decided)
    draws = not torch.equal(before, torch.get_rng_state())
    gap = relative_gap(first.outputs, run(model, example, name), whole_numbers=True)
    if gap <= LARGEST_NOISE and not draws:
        return
    with Decisions(decided) as following:
        gap = TrialRun(run(model, example, name), following).gap(first, whole_numbers=True)
    if math.isfinite(gap) and gap > LARGEST_NOISE:
        raise ValueError(
            f"the model is random in evaluation mode: its outputs in two runs on the same input differ by {gap:.2g} of their "
            "spread; switch off what draws random numbers, such as dropout that does not heed eval()"
        )


def _noting(called: set[str]) -> Callable[[str, nn.Module], Sequence[Any]]:
    """Return what registers the hooks that collect the names of the modules that are called."""

    def make(name: str, module: nn.Module) -> Sequence[Any]:
        return (module.register_forward_pre_hook(lambda *_: called.add(name)),)

    return make


def _not_run(model: nn.Module, called: set[str]) -> list[Untouched]:
    """Return a note for every outermost module with weights of which no part is called.

    Parts of torch's own modules are left out: these use the weights of their parts. So is a module all of whose parameters are
    those of others that are called, as the embedding that an encoder and a decoder share.
    """
    used = {p for name, module in model.named_modules() if name in called for p in module.parameters(recurse=False)}
    names: list[str] = []
    for name, module in model.named_modules():
        inside = f"{name}." if name else ""
        if any(part == name or part.startswith(inside) for part in called) or used.issuperset(module.parameters()):
            continue
        owner = model.get_submodule(name.rpartition(".")[0])
        is_part = type(owner).__module__.startswith("torch.") and not isinstance(owner, CONTAINERS)
        if not is_part and not any(name.startswith(f"{outer}.") for outer in names):
            names.append(name)
    return [Untouched.because(name, because(Cause.NOT_RUN)) for name in names]


def _unknown_layers(dense: nn.Module, known: set[str]) -> list[Untouched]:
    """Return the modules with weights that no kind knows, such as recurrent ones, without those that were spoken of."""
    untouched = []
    for name, module in dense.named_modules():
        is_leaf = all(child == "parametrizations" for child, _ in module.named_children())
        has_weight = any(p.ndim > 1 for p in module.parameters(recurse=False))
        if not name or is_layer(module) or not is_leaf or not has_weight:
            continue
        is_known = name in known or any(layer.startswith(f"{name}.") for layer in known)
        if not is_known and ".parametrizations." not in f".{name}.":
            kind = type_before_parametrizations(module).__name__
            untouched.append(Untouched.because(name, because(Cause.UNKNOWN_TYPE, type=kind)))
    return untouched
